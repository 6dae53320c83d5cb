// Charts as SVG, drawn by hand: they print sharply, take the page's colours and can be walked through by keys.
// Names come from data and are only ever set as text.

const SVG = "http://www.w3.org/2000/svg";
const DASHES = ["", "", "2 3", "10 3 2 3", "", "14 3", "1 3"]; // floors are the ones with even dashes

function element(name, attributes, parent, text) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  if (parent) parent.append(made);
  return made;
}

function shape(name, attributes, parent, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  parent.append(made);
  return made;
}

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

// As evaluation/records.py: an error to two digits and the value to the error's last; a value without one to four digits.
function formatted(value, error) {
  if (value === null || value === undefined) return "none";
  if (!isNumber(value)) return String(value);
  const known = isNumber(error) && error !== 0;
  const size = Math.max(Math.abs(value), known ? error : 0);
  if (size === 0) return "0";
  if (size < 1e-4 || size >= 1e6) return known ? scientific(value, error) : String(Number(value.toPrecision(3)));
  if (!known) return String(Number(value.toFixed(placesOf(value, 4))));
  const places = placesOf(error, 2);
  return `${Number(value.toFixed(places)) === 0 ? (0).toFixed(places) : value.toFixed(places)}±${error.toFixed(places)}`;
}

function scientific(value, error) {
  const powerOf = (number) => Number(number.toExponential(1).split("e")[1]);
  const written = (number, places) => number.toExponential(places).replace(/e([+-])(\d)$/, "e$10$2");
  const shared = Math.min(Math.max(powerOf(value) - powerOf(error) + 1, 0), 16);
  return `${value === 0 ? "0" : written(value, shared)}±${written(error, 1)}`;
}

// Decimal places that leave so many digits of a number, as it is rounded; none of a number with more before them.
const placesOf = (number, digits) => Math.max(0, digits - 1 - Number(number.toExponential(digits - 1).split("e")[1]));

function ticksOf(low, high, count, whole) {
  let step = 10 ** Math.floor(Math.log10((high - low) / count || 1));
  const error = (high - low) / count / step;
  step *= error >= 7.5 ? 10 : error >= 3.5 ? 5 : error >= 1.5 ? 2 : 1;
  if (whole) step = Math.max(1, Math.round(step));
  const found = [];
  for (let place = Math.ceil(low / step - 1e-9); place * step <= high + step * 1e-9; place += 1) found.push(place * step);
  return found;
}

function logTicks(low, high) {
  const found = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) {
    for (const digit of high / low > 300 ? [1] : high / low > 20 ? [1, 3] : [1, 2, 3, 5, 7]) {
      const value = digit * 10 ** power;
      if (value >= low * 0.999 && value <= high * 1.001) found.push(value);
    }
  }
  return found.length > 1 ? found : [low, high];
}

const tickText = (value) => {
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(1).replace(".0e", "e");
  return String(Number(value.toPrecision(6)));
};

// spec: title, x, y (labels), whole (x of whole numbers), log, height, lines: [{name, colour, x, y, error, dash, mark,
// faint, picked, band}], floors: [{name, colour, y}], pairs: [[place, place, beyond]] of a scatter's points, scatter,
// describe(place): text of a place. Places are those of spec.places, the x values (or points) that keys walk through.
class Chart {
  constructor(parent, spec) {
    this.spec = spec;
    this.window = null;
    this.place = null;
    this.box = element("div", {}, parent);
    this.box.className = "chart";
    this.svg = document.createElementNS(SVG, "svg");
    this.svg.setAttribute("tabindex", "0");
    this.svg.setAttribute("role", "img");
    this.box.append(this.svg);
    this.tip = element("div", { class: "tip", hidden: "" }, this.box);
    this.said = element("div", { class: "said", "aria-live": "polite" }, this.box);
    this.legend = element("ul", { class: "legend" }, this.box);
    const tools = element("div", { class: "controls noprint" }, this.box);
    if (!spec.scatter) {
      this.out = element("button", { type: "button", disabled: "" }, tools, "Whole range");
      this.out.addEventListener("click", () => this.zoom(null));
    }
    if (spec.canLog !== false) {
      this.logButton = element("button", { type: "button", "aria-pressed": String(Boolean(spec.log)) }, tools, "Log scale");
      this.logButton.addEventListener("click", () => this.setLog(!this.spec.log));
    }
    this.listen();
    new ResizeObserver(() => this.draw()).observe(this.box);
    window.addEventListener("beforeprint", () => this.draw());
  }

  update(spec) {
    Object.assign(this.spec, spec);
    this.place = null;
    this.tip.hidden = true;
    this.draw();
  }

  setLog(on) {
    this.spec.log = on;
    this.logButton.setAttribute("aria-pressed", String(on));
    this.draw();
    if (this.spec.remember) this.spec.remember(on);
  }

  zoom(window_) {
    this.window = window_;
    if (this.out) this.out.disabled = window_ === null;
    this.draw();
  }

  usable(value) { return isNumber(value) && (!this.spec.log || value > 0); }

  range(values, isLog, pad) {
    let low = Infinity, high = -Infinity;
    for (const value of values) { if (value < low) low = value; if (value > high) high = value; }
    if (low > high) return isLog ? [1, 10] : [0, 1];
    if (low === high) { const half = Math.abs(low) * 0.05 || 0.5; return isLog ? [low / 1.2, high * 1.2] : [low - half, high + half]; }
    if (isLog) { const factor = (high / low) ** pad; return [low / factor, high * factor]; }
    return [low - pad * (high - low), high + pad * (high - low)];
  }

  scales() {
    const { spec } = this, xs = [], ys = [];
    for (const line of spec.lines) {
      line.x.forEach((x, k) => {
        const y = line.y[k];
        if (!isNumber(x) || !this.usable(y)) return;
        if (!spec.scatter && this.window && (x < this.window[0] || x > this.window[1])) return;
        xs.push(x); ys.push(y);
        const error = line.error && isNumber(line.error[k]) ? line.error[k] : 0;
        if (error && !line.faint) for (const end of [y - error, y + error]) if (this.usable(end)) ys.push(end);
        if (spec.scatter && line.xError && isNumber(line.xError[k])) xs.push(x - line.xError[k], x + line.xError[k]);
      });
    }
    for (const floor of spec.floors || []) if (this.usable(floor.y) && !this.window) { ys.push(floor.y); if (isNumber(floor.x)) xs.push(floor.x); }
    const [low, high] = this.window && !spec.scatter ? this.window : this.range(xs, false, spec.scatter ? 0.08 : 0.02);
    const [bottom, top] = this.range(ys, spec.log, 0.06);
    const width = Math.max(240, this.box.clientWidth), height = spec.height || 300;
    const left = 58, right = 12, up = spec.title ? 30 : 12, down = 42;
    const turn = spec.log ? Math.log10 : (value) => value;
    return {
      width, height, left, right, up, down, low, high, bottom, top,
      x: (value) => left + ((value - low) / (high - low)) * (width - left - right),
      y: (value) => height - down - ((turn(value) - turn(bottom)) / (turn(top) - turn(bottom))) * (height - up - down),
      back: (pixel) => low + ((pixel - left) / (width - left - right)) * (high - low),
    };
  }

  draw() {
    if (!this.box.clientWidth) return;
    const { spec, svg } = this, s = (this.scale = this.scales());
    svg.replaceChildren();
    svg.setAttribute("viewBox", `0 0 ${s.width} ${s.height}`);
    svg.setAttribute("height", s.height);
    svg.setAttribute("aria-label", `${spec.title || spec.y}: ${spec.lines.filter((l) => !l.faint).map((l) => l.name).join(", ")} over ${spec.x}. Arrow keys walk through the values; + and - zoom, 0 shows all.`);
    if (spec.title) shape("text", { x: s.left, y: 16, class: "title" }, svg, spec.title);
    this.axes(s);
    const clip = shape("clipPath", { id: (this.id = this.id || `clip${(Chart.count = (Chart.count || 0) + 1)}`) }, svg);
    shape("rect", { x: s.left, y: s.up, width: s.width - s.left - s.right, height: s.height - s.up - s.down }, clip);
    const inside = shape("g", { "clip-path": `url(#${this.id})` }, svg);
    for (const floor of spec.floors || []) this.drawFloor(floor, inside, s);
    for (const [a, b, beyond] of spec.pairs || []) this.drawPair(a, b, beyond, inside, s);
    for (const line of spec.lines) this.drawLine(line, inside, s);
    this.cursor = shape("g", {}, svg);
    this.marked = shape("rect", { class: "chosen", y: s.up, height: s.height - s.up - s.down, width: 0, x: 0 }, svg);
    this.drawLegend();
    if (this.place !== null) this.show(this.place);
  }

  axes(s) {
    const { spec, svg } = this;
    const across = spec.whole && s.high - s.low < 1.5 ? [...new Set(spec.places.filter((x) => x >= s.low && x <= s.high))] : ticksOf(s.low, s.high, Math.max(2, Math.floor(s.width / 90)), spec.whole);
    for (const value of across) {
      shape("line", { x1: s.x(value), x2: s.x(value), y1: s.up, y2: s.height - s.down, class: "grid" }, svg);
      shape("text", { x: s.x(value), y: s.height - s.down + 16, "text-anchor": "middle" }, svg, spec.whole && value === -1 ? "before" : tickText(value));
    }
    const upwards = spec.log ? logTicks(s.bottom, s.top) : ticksOf(s.bottom, s.top, Math.max(2, Math.floor(s.height / 55)));
    for (const value of upwards) {
      shape("line", { x1: s.left, x2: s.width - s.right, y1: s.y(value), y2: s.y(value), class: "grid" }, svg);
      shape("text", { x: s.left - 6, y: s.y(value) + 4, "text-anchor": "end" }, svg, tickText(value));
    }
    shape("line", { x1: s.left, x2: s.width - s.right, y1: s.height - s.down, y2: s.height - s.down, class: "axis" }, svg);
    shape("line", { x1: s.left, x2: s.left, y1: s.up, y2: s.height - s.down, class: "axis" }, svg);
    shape("text", { x: (s.left + s.width - s.right) / 2, y: s.height - 8, "text-anchor": "middle" }, svg, spec.x);
    shape("text", { x: 13, y: (s.up + s.height - s.down) / 2, "text-anchor": "middle", transform: `rotate(-90 13 ${(s.up + s.height - s.down) / 2})` }, svg, spec.y);
  }

  drawFloor(floor, parent, s) {
    if (!this.usable(floor.y)) return;
    if (this.spec.scatter) {
      if (!isNumber(floor.x)) return;
      const [x, y] = [s.x(floor.x), s.y(floor.y)];
      shape("path", { d: `M${x - 6} ${y}L${x} ${y - 6}L${x + 6} ${y}L${x} ${y + 6}Z`, class: "line c2" }, parent);
      return;
    }
    shape("line", { x1: s.left, x2: s.width - s.right, y1: s.y(floor.y), y2: s.y(floor.y), class: `floor c${floor.colour}` }, parent);
  }

  drawPair(a, b, beyond, parent, s) {
    const [line] = this.spec.lines, ends = [a, b].map((place) => [line.x[place], line.y[place]]);
    if (!ends.flat().every(isNumber)) return;
    const [[x1, y1], [x2, y2]] = ends.map(([x, y]) => [s.x(x), s.y(y)]);
    shape("line", { x1, y1, x2, y2, class: beyond ? "inverted beyond" : "inverted" }, parent);
  }

  drawLine(line, parent, s) {
    const points = line.x.map((x, k) => [x, line.y[k], line.error ? line.error[k] : null, k]).filter(([x, y]) => isNumber(x) && this.usable(y));
    const at = (x, y) => `${s.x(x).toFixed(1)} ${s.y(y).toFixed(1)}`;
    const kind = line.picked ? "picked" : line.faint ? "faint" : `line c${line.colour}`;
    const low = (y, error) => (this.usable(y - error) ? y - error : s.bottom);
    const errors = points.filter((point) => isNumber(point[2]) && point[2] > 0);
    if (errors.length > 1 && !line.faint && !this.spec.scatter) {
      const upper = errors.map(([x, y, e]) => at(x, y + e)), lower = errors.map(([x, y, e]) => at(x, low(y, e))).reverse();
      shape("path", { d: `M${[...upper, ...lower].join("L")}Z`, class: `band f${line.colour}` }, parent);
    }
    if (!line.faint) {
      for (const [x, y, error, k] of errors) {
        shape("line", { x1: s.x(x), x2: s.x(x), y1: s.y(low(y, error)), y2: s.y(y + error), class: this.spec.scatter ? "cross" : `bar c${line.colour}` }, parent);
        if (line.xError && isNumber(line.xError[k])) shape("line", { x1: s.x(x - line.xError[k]), x2: s.x(x + line.xError[k]), y1: s.y(y), y2: s.y(y), class: "cross" }, parent);
      }
    }
    if (!this.spec.scatter && points.length > 1) {
      shape("path", { d: `M${points.map(([x, y]) => at(x, y)).join("L")}`, class: kind, "stroke-dasharray": line.faint ? "" : DASHES[line.dash || 0] }, parent);
    }
    if (line.faint ? points.length === 1 : points.length < 80) for (const [x, y] of points) this.mark(line, s.x(x), s.y(y), parent);
  }

  mark(line, x, y, parent, size = 3.5) {
    const look = { class: `mark f${line.colour} c${line.colour}` };
    if (line.mark === 1) shape("rect", { x: x - size, y: y - size, width: 2 * size, height: 2 * size, ...look }, parent);
    else if (line.mark === 2) shape("path", { d: `M${x} ${y - size - 1}L${x + size + 1} ${y + size}L${x - size - 1} ${y + size}Z`, ...look }, parent);
    else shape("circle", { cx: x, cy: y, r: size, ...look }, parent);
  }

  drawLegend() {
    this.legend.replaceChildren();
    const entries = this.spec.lines.filter((line) => !line.faint && !line.silent).map((line) => [line, false]);
    const floors = (this.spec.floors || []).filter((floor) => isNumber(floor.y) && floor.name).map((floor) => [floor, true]);
    for (const [entry, isFloor] of [...entries, ...floors]) {
      const item = element("li", {}, this.legend), picture = shape("svg", { viewBox: "0 0 26 12", "aria-hidden": "true" }, item);
      if (isFloor && this.spec.scatter) shape("path", { d: "M7 6L13 1L19 6L13 11Z", class: "line c2" }, picture);
      else shape("line", { x1: 0, x2: 26, y1: 6, y2: 6, class: isFloor ? `floor c${entry.colour}` : entry.picked ? "picked" : `line c${entry.colour}`, ...(isFloor || this.spec.scatter ? {} : { "stroke-dasharray": DASHES[entry.dash || 0] }), ...(this.spec.scatter && !isFloor ? { opacity: 0 } : {}) }, picture);
      if (!isFloor && !entry.picked) this.mark(entry, 13, 6, picture, 3);
      element("bdi", {}, item, entry.name);
    }
    for (const [text, kind] of this.spec.notes || []) {
      const item = element("li", {}, this.legend), picture = shape("svg", { viewBox: "0 0 26 12", "aria-hidden": "true" }, item);
      shape("line", { x1: 0, x2: 26, y1: 6, y2: 6, class: kind }, picture);
      element("span", {}, item, text);
    }
  }

  // ---- hover, keys, zoom ----

  nearest(event) {
    const box = this.svg.getBoundingClientRect(), s = this.scale;
    const px = ((event.clientX - box.left) / box.width) * s.width, py = ((event.clientY - box.top) / box.height) * s.height;
    let best = null, least = Infinity;
    this.spec.places.forEach((x, place) => {
      const line = this.spec.lines[0];
      const away = this.spec.scatter ? Math.hypot(s.x(line.x[place]) - px, s.y(line.y[place]) - py) : Math.abs(s.x(x) - px);
      if (away < least && this.isShown(place)) { least = away; best = place; }
    });
    return best;
  }

  isShown(place) {
    const x = this.spec.places[place];
    if (this.spec.scatter) return this.usable(this.spec.lines[0].y[place]) && isNumber(this.spec.lines[0].x[place]);
    return isNumber(x) && x >= this.scale.low && x <= this.scale.high;
  }

  show(place) {
    this.place = place;
    const s = this.scale;
    this.cursor.replaceChildren();
    if (place === null || !this.isShown(place)) { this.tip.hidden = true; return; }
    const line = this.spec.lines[0], x = s.x(this.spec.scatter ? line.x[place] : this.spec.places[place]);
    const y = this.spec.scatter ? s.y(line.y[place]) : s.up;
    if (this.spec.scatter) shape("circle", { cx: x, cy: y, r: 8, class: "line c6" }, this.cursor);
    else shape("line", { x1: x, x2: x, y1: s.up, y2: s.height - s.down, class: "cross" }, this.cursor);
    this.tip.textContent = this.said.textContent = this.spec.describe(place);
    this.tip.hidden = false;
    const share = this.box.clientWidth / s.width, left = x * share, wide = this.tip.offsetWidth;
    this.tip.style.left = `${Math.max(0, left + wide + 14 > this.box.clientWidth ? left - wide - 10 : left + 10)}px`;
    this.tip.style.top = `${Math.min(y + 8, s.height - this.tip.offsetHeight - 4)}px`;
  }

  step(way) {
    const shown = this.spec.places.map((_, place) => place).filter((place) => this.isShown(place));
    if (!shown.length) return;
    const none = way === 1 || way === -Infinity ? -1 : shown.length, at = shown.indexOf(this.place);
    this.show(shown[Math.min(shown.length - 1, Math.max(0, (at < 0 ? none : at) + way))]);
  }

  listen() {
    let start = null;
    this.svg.addEventListener("pointermove", (event) => {
      if (start !== null) this.drag(start, event);
      this.show(this.nearest(event));
    });
    this.svg.addEventListener("pointerleave", () => { if (start === null) this.show(null); });
    this.svg.addEventListener("blur", () => this.show(null));
    this.svg.addEventListener("pointerdown", (event) => { if (!this.spec.scatter && event.pointerType !== "touch") start = event.clientX; });
    window.addEventListener("pointerup", (event) => {
      if (start === null) return;
      const ends = [start, event.clientX].map((x) => this.valueAt(x)).sort((a, b) => a - b), moved = Math.abs(event.clientX - start);
      start = null;
      this.marked.setAttribute("width", 0);
      if (moved > 8) this.zoom([Math.max(ends[0], this.scale.low), Math.min(ends[1], this.scale.high)]);
    });
    this.svg.addEventListener("dblclick", () => this.zoom(null));
    this.svg.addEventListener("keydown", (event) => {
      const steps = { ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity };
      if (event.key in steps) this.step(steps[event.key]);
      else if ("+-0=".includes(event.key) && event.key.length === 1 && !this.spec.scatter) this.zoomBy(event.key);
      else if (event.key === "Escape") this.show(null);
      else return;
      event.preventDefault();
    });
  }

  valueAt(clientX) {
    const box = this.svg.getBoundingClientRect();
    return this.scale.back(((clientX - box.left) / box.width) * this.scale.width);
  }

  drag(start, event) {
    const [a, b] = [start, event.clientX].map((x) => this.scale.x(this.valueAt(x)));
    this.marked.setAttribute("x", Math.min(a, b));
    this.marked.setAttribute("width", Math.abs(a - b));
  }

  zoomBy(key) {
    if (key === "0") { this.zoom(null); return; }
    const s = this.scale, middle = this.place === null ? (s.low + s.high) / 2 : this.spec.places[this.place];
    const half = ((s.high - s.low) / 2) * (key === "-" ? 2 : 0.5), whole = this.wholeRange();
    const next = [Math.max(whole[0], middle - half), Math.min(whole[1], middle + half)];
    this.zoom(next[0] <= whole[0] && next[1] >= whole[1] ? null : next);
  }

  wholeRange() {
    return this.range(this.spec.lines.flatMap((line) => line.x).filter(isNumber), false, 0.02);
  }
}
