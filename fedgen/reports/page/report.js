// The parts of the page that move: scores, clients, samples, logged values, colours.

const data = JSON.parse(document.getElementById("data").textContent);
const LINES = { avg: [0, 0], all: [1, 1], worst: [6, 2] };
const PAGE_ROWS = 100, MOST_CLIENT_LINES = 100, MOST_SERIES = 24;

function startReloading() {
  if (!data.live) return;
  const pause = document.getElementById("pause");
  let stopped = false;
  pause.addEventListener("click", () => {
    stopped = !stopped;
    pause.setAttribute("aria-pressed", String(stopped));
  });
  setInterval(() => { if (!stopped) location.reload(); }, 60000);
}

function labelled(parent, text, control) {
  const label = element("label", {}, parent);
  element("span", {}, label, text);
  label.append(control);
  return control;
}

function choice(parent, text, names, value) {
  const control = labelled(parent, text, element("select", {}));
  names.forEach((name, place) => element("option", { value: place }, control, name));
  control.value = String(value);
  return control;
}

function ticked(parent, text, on) {
  const label = element("label", {}, parent), box = element("input", { type: "checkbox" }, label);
  box.checked = on;
  element("span", {}, label, text);
  return box;
}

const roundName = (round) => (round === -1 ? "before training" : `round ${round}`);
const twice = (errors) => errors.map((error) => (isNumber(error) ? 2 * error : null));

// ---- scores ----

function lineOf(line, extra) {
  const [colour, mark] = LINES[line.aggregate] || [2 + (extra % 4), extra % 3];
  return { name: line.column, colour, mark, dash: mark, x: line.rounds, y: line.values, error: twice(line.errors) };
}

function scoreSpec(panel, options) {
  const lines = panel.lines.filter((line) => line.aggregate !== "worst" || options.worst);
  const drawn = lines.map(lineOf);
  const floors = lines.filter((line) => line.floor).map((line) => ({ name: `floor of ${line.column}`, colour: (LINES[line.aggregate] || [2])[0], y: line.floor.value }));
  const places = [...new Set(lines.flatMap((line) => line.rounds))].sort((a, b) => a - b);
  const own = panel.clients, extra = panel.controls.filter((line) => line.aggregate !== "worst" || options.worst).map((line) => ({ name: `${line.name}, ${line.aggregate}`, colour: (LINES[line.aggregate] || [2])[0], dash: line.name === panel.controls[0].name ? 6 : 3, x: line.rounds, y: line.values }));
  if (own.values && (options.clients || options.picked !== null)) {
    const step = Math.max(1, Math.ceil(own.names.length / MOST_CLIENT_LINES));
    own.names.forEach((name, k) => {
      const picked = name === options.picked;
      if (!picked && (!options.clients || k % step)) return;
      const line = { name, colour: 2, x: own.rounds, y: own.values.map((row) => row[k]), faint: !picked, picked };
      if (picked) extra.push(line); else extra.unshift(line);
    });
  }
  return {
    title: `${panel.name} over rounds`, x: "round", y: panel.axis, whole: true, places, floors,
    lines: [...drawn, ...extra.filter((l) => !l.picked), ...extra.filter((l) => l.picked)],
    describe: (place) => describeRound(panel, lines, places[place], options.picked),
  };
}

function describeRound(panel, lines, round, picked) {
  const said = [roundName(round)];
  for (const line of lines) {
    const at = line.rounds.indexOf(round);
    if (at >= 0) said.push(`${line.column} ${formatted(line.values[at], line.errors[at])} (${line.values[at]})`);
    if (at >= 0 && line.floor) said.push(`  floor ${formatted(line.floor.value, line.floor.error)}`);
  }
  const at = panel.clients.rounds ? panel.clients.rounds.indexOf(round) : -1;
  const k = picked === null || at < 0 ? -1 : panel.clients.names.indexOf(picked);
  if (k >= 0) said.push(`${picked} ${formatted(panel.clients.values[at][k], (panel.clients.errors[at] || [])[k])}`);
  return said.join("\n");
}

function scatterSpec(panel) {
  const [avg, all] = ["avg", "all"].map((name) => panel.lines.find((line) => line.aggregate === name));
  if (!avg || !all) return null;
  const rounds = avg.rounds.filter((round) => all.rounds.includes(round));
  const pick = (line, key) => rounds.map((round) => line[key][line.rounds.indexOf(round)]);
  const floors = avg.floor && all.floor ? [{ name: "floor", colour: 2, x: avg.floor.value, y: all.floor.value }] : [];
  const pairs = panel.pairs.map(([a, b, beyond]) => [rounds.indexOf(a), rounds.indexOf(b), beyond]);
  const [x, y] = [pick(avg, "values"), pick(all, "values")];
  const inverted = (round) => panel.pairs.filter(([a, b]) => a === round || b === round).map(([a, b, beyond]) => `round ${a} by avg, ${b} by all${beyond ? ", for sure" : ", maybe by chance"}`);
  return {
    title: `${panel.name}: avg against all`, x: `${panel.name}_avg`, y: `${panel.name}_all`, scatter: true, places: x, pairs, floors,
    lines: [{ name: "a point: a checkpoint; a bar: 2 standard errors", colour: 1, mark: 0, x, y, xError: twice(pick(avg, "generated")), error: twice(pick(all, "generated")) }],
    notes: [["ordered differently, for sure (95 %)", "inverted beyond"], ["ordered differently, maybe by chance", "inverted"]].filter((_, k) => panel.pairs.some((pair) => pair[2] === (k === 0))),
    describe: (place) => [roundName(rounds[place]), `avg ${formatted(x[place], pick(avg, "errors")[place])}`, `all ${formatted(y[place], pick(all, "errors")[place])}`, ...inverted(rounds[place])].join("\n"),
  };
}

function startScores(place, run, host, state) {
  if (!run.panels.length) { element("p", { class: "missing" }, host, "No model was scored."); return; }
  const controls = element("div", { class: "controls noprint" }, host);
  const select = choice(controls, "score", run.panels.map((panel) => `${panel.name} ${panel.mark}`.trim()), state.panel);
  const everyone = ticked(controls, "every client", chosen.get(`clients${place}`, false));
  const worst = ticked(controls, "worst client", chosen.get(`worst${place}`, false));
  const pair = element("div", { class: "pair" }, host), left = element("div", {}, pair), right = element("div", {}, pair);
  const about = element("p", { class: "about" }, host);
  const options = () => ({ clients: everyone.checked, worst: worst.checked, picked: state.picked });
  const panel = () => run.panels[state.panel];
  const rounds = run.panels[0].lines[0].rounds;
  const isStored = rounds.length === 1 && run.samples.length === 0 && !run.series.length;
  const log = chosen.get(`log${place}`, false);
  const curves = isStored ? null : new Chart(left, { ...scoreSpec(panel(), options()), log, remember: (on) => chosen.set(`log${place}`, on) });
  let scatter = null;
  const refresh = () => {
    const against = rounds.length > 1 ? scatterSpec(panel()) : null;
    if (curves) curves.update(scoreSpec(panel(), options()));
    if (against && scatter) scatter.update({ notes: [], ...against });
    else if (against) scatter = new Chart(right, { ...against, canLog: false });
    right.hidden = !against;
    pair.hidden = isStored && !against;
    about.textContent = panel().about.join("; ") + (panel().clients.left_out ? `; clients' scores of ${panel().clients.rounds.length} rounds are in this page` : "") + (panel().pairs_left ? `; ${panel().pairs_left} more pairs that avg and all order differently are not drawn` : "");
    everyone.parentElement.hidden = isStored || !panel().clients.values;
    worst.parentElement.hidden = isStored || !panel().lines.some((line) => line.aggregate === "worst");
  };
  select.addEventListener("change", () => { state.panel = Number(select.value); chosen.set(`panel${place}`, state.panel); state.changed(); });
  everyone.addEventListener("change", () => { chosen.set(`clients${place}`, everyone.checked); refresh(); });
  worst.addEventListener("change", () => { chosen.set(`worst${place}`, worst.checked); refresh(); });
  state.listeners.push(refresh);
  refresh();
}

// ---- clients ----

function mixture(parent, labels, classes) {
  const total = labels.reduce((sum, count) => sum + count, 0);
  const text = labels.map((count, k) => [count, classes[k]]).filter(([count]) => count).map(([count, name]) => `${name}: ${count}`).join(", ");
  const box = element("span", { class: "mix", title: text, role: "img", "aria-label": text }, parent);
  const picture = shape("svg", { viewBox: "0 0 100 10", preserveAspectRatio: "none" }, box);
  let start = 0;
  labels.forEach((count, k) => {
    if (!count || !total) return;
    const width = (100 * count) / total;
    shape("rect", { x: start, y: 0, width, height: 10, class: `f${k % 6}`, opacity: 1 - 0.25 * (Math.floor(k / 6) % 4) }, picture);
    start += width;
  });
  const most = labels.indexOf(Math.max(...labels));
  const held = labels.filter((count) => count).length;
  element("span", {}, parent, !total ? " none" : held === 1 ? " only " : ` ${held} labels, most: `);
  if (total) element("bdi", { title: classes[most] }, parent, classes[most]);
}

const aboveFloor = (row) => (isNumber(row.value) && isNumber(row.floor) ? row.value - row.floor : null);

function bar(parent, value, most, good) {
  const picture = shape("svg", { viewBox: "-50 0 100 10", preserveAspectRatio: "none" }, element("span", { class: "mix bar", "aria-hidden": "true" }, parent));
  const width = most ? (50 * Math.abs(value)) / most : 0;
  shape("rect", { x: value < 0 ? -width : 0, y: 0, width, height: 10, class: good ? "f2" : "f0" }, picture);
}

function startClients(place, run, host, state) {
  if (!run.clients.length) { element("p", { class: "missing" }, host, "The folder does not tell who the clients are."); return; }
  const isDrawn = run.panels.some((panel) => panel.clients.values) && document.querySelector(`[data-run="${place}"] [data-part="scores"] .chart`);
  const controls = element("div", { class: "controls noprint" }, host);
  const find = labelled(controls, "find", element("input", { type: "search", placeholder: "part of a name" }));
  const slider = labelled(controls, "round", element("input", { type: "range", min: 0, step: 1 })), shown = element("output", {}, controls);
  const scroll = element("div", { class: "scroll long", tabindex: "0", role: "region", "aria-label": "clients" }, host);
  const table = element("table", { class: "clients" }, scroll), turn = element("div", { class: "controls noprint" }, host);
  const back = element("button", { type: "button" }, turn, "Previous"), where = element("span", {}, turn), on = element("button", { type: "button" }, turn, "Next");
  let sort = null, down = false, first = 0, at = null, most = 0;
  const panel = () => (run.panels[state.panel] && run.panels[state.panel].clients.values ? run.panels[state.panel] : null);
  const columns = () => {
    const has = (key) => run.clients.some((one) => one[key] !== null && one[key] !== undefined && one[key] !== "" && (key !== "role" || one.role !== run.clients[0].role));
    const found = [["client", (row) => row.name], ["role", (row) => row.role], ["train", (row) => row.train], ["held out", (row) => row.held_out]].filter(([name]) => name === "client" || has(name.replace(" ", "_")));
    if (run.classes.length) found.push(["labels", (row) => (row.labels || []).filter((count) => count).length]);
    if (panel()) found.push([panel().name, (row) => row.value]);
    if (panel() && panel().clients.floor.length) found.push(["floor", (row) => row.floor], ["above floor", aboveFloor]);
    if (run.clients.some((one) => one.out)) found.push(["rounds left out", (row) => row.out]);
    return found;
  };
  const rows = () => {
    const own = panel(), places = new Map(own ? own.clients.names.map((name, k) => [name, k]) : []);
    return run.clients.map((one) => {
      const k = places.get(one.name);
      if (k === undefined || !own) return { ...one, value: null, error: null, floor: null };
      return { ...one, value: own.clients.values[at][k], error: (own.clients.errors[at] || [])[k], floor: own.clients.floor[k], floorError: own.clients.floor_errors[k] };
    });
  };
  const size = (value) => (typeof value === "string" && !Number.isNaN(Number(value)) ? Number(value) : value);
  const refresh = () => {
    const own = panel();
    const count = own ? own.clients.rounds.length : 0;
    if (at === null && own) at = own.clients.rounds.indexOf(run.first.round);
    if (at === null || at < 0 || at >= count) at = Math.max(0, count - 1);
    slider.max = String(Math.max(0, count - 1));
    slider.value = String(at);
    slider.parentElement.hidden = shown.hidden = count < 2;
    shown.textContent = own ? roundName(own.clients.rounds[at]) : "";
    const named = columns(), wanted = find.value.toLowerCase();
    let found = rows().filter((row) => row.name.toLowerCase().includes(wanted));
    const key = named.find(([name]) => name === sort);
    if (key) found = found.map((row, k) => [key[1](row), k, row]).sort(([a, i], [b, j]) => {
      if (a === b) return i - j;
      if (a === null || a === undefined) return 1;
      if (b === null || b === undefined) return -1;
      const [p, q] = [size(a), size(b)];
      return (p < q ? -1 : 1) * (down ? -1 : 1);
    }).map(([, , row]) => row);
    if (first >= found.length) first = 0;
    table.replaceChildren();
    const head = element("tr", {}, element("thead", {}, table)), body = element("tbody", {}, table);
    for (const [name] of named) {
      const cell = element("th", { scope: "col", ...(name === sort ? { "aria-sort": down ? "descending" : "ascending" } : {}) }, head);
      const button = element("button", { type: "button", "data-column": name }, cell, `${name}${name === sort ? (down ? " ▼" : " ▲") : ""}`);
      button.addEventListener("click", () => { down = sort === name && !down; sort = name; refresh(); const again = [...table.querySelectorAll("th button")].find((one) => one.dataset.column === name); if (again) again.focus(); });
    }
    most = Math.max(0, ...rows().map((row) => Math.abs(aboveFloor(row) || 0)));
    for (const row of found.slice(first, first + PAGE_ROWS)) clientRow(body, row, named, own);
    back.disabled = first === 0;
    on.disabled = first + PAGE_ROWS >= found.length;
    turn.hidden = found.length <= PAGE_ROWS;
    where.textContent = found.length ? `${first + 1} to ${Math.min(first + PAGE_ROWS, found.length)} of ${found.length}` : "none";
  };
  const clientRow = (body, row, named, own) => {
    const line = element("tr", row.name === state.picked ? { class: "picked" } : {}, body);
    for (const [name, value] of named) {
      const cell = element("td", {}, line);
      if (name === "client" && isDrawn) {
        const button = element("button", { type: "button", "aria-pressed": String(row.name === state.picked), title: row.name }, cell);
        element("bdi", {}, button, row.name);
        button.addEventListener("click", () => { state.picked = row.name === state.picked ? null : row.name; state.changed(); });
      } else if (name === "client") element("bdi", { title: row.name }, cell, row.name);
      else if (name === "labels") mixture(cell, row.labels || [], run.classes);
      else if (own && name === own.name) { cell.className = "number"; cell.textContent = row.value === null ? "not scored" : formatted(row.value, row.error); cell.title = String(row.value); }
      else if (name === "above floor") {
        const above = value(row);
        cell.className = "number";
        if (above === null) continue;
        element("span", {}, cell, `${formatted(above, Math.hypot(row.error || 0, row.floorError || 0) || null).split("±")[0]} `);
        bar(cell, above, most, above > 0 === own.higher);
      } else { const text = value(row); cell.className = typeof text === "number" ? "number" : ""; cell.textContent = text === null || text === undefined ? "" : name === "floor" ? formatted(text, row.floorError) : String(text); }
    }
  };
  slider.addEventListener("input", () => { at = Number(slider.value); refresh(); });
  find.addEventListener("input", () => { first = 0; refresh(); });
  back.addEventListener("click", () => { first = Math.max(0, first - PAGE_ROWS); refresh(); });
  on.addEventListener("click", () => { first += PAGE_ROWS; refresh(); });
  state.listeners.push(refresh);
  refresh();
  if (isDrawn) element("p", { class: "about" }, host, "A client's button draws its line in the chart of scores; headings sort.");
}

// ---- samples ----

// Pictures of samples at whole multiples of their pixels, or whole parts where the page is narrower.
function fitPixels(image) {
  const room = image.closest("figure").clientWidth, own = image.naturalWidth;
  if (room && own) image.style.width = `${own <= room ? own * Math.floor(room / own) : own / Math.ceil(own / room)}px`;
}

function startSamples(place, run, host) {
  if (!host) return;
  const pictures = [...host.querySelectorAll("img.pixels")];
  for (const picture of pictures) picture.addEventListener("load", () => fitPixels(picture));
  addEventListener("resize", () => pictures.forEach(fitPixels));
  pictures.forEach(fitPixels);
  if (run.samples.length < 2) return;
  const controls = element("div", { class: "controls noprint" });
  host.prepend(controls);
  const slider = labelled(controls, "samples of", element("input", { type: "range", min: 0, max: run.samples.length - 1, step: 1 }));
  const shown = element("output", {}, controls), image = host.querySelector("img.generated"), when = host.querySelector(".when");
  const refresh = () => {
    const sample = run.samples[Number(slider.value)];
    image.src = sample.uri;
    image.alt = `generated images, ${sample.name}`;
    when.textContent = shown.textContent = sample.name;
    slider.setAttribute("aria-valuetext", sample.name);
  };
  const taken = run.samples.findIndex((sample) => sample.round === run.first.round);
  slider.value = String(taken < 0 ? run.samples.length - 1 : taken);
  slider.addEventListener("input", refresh);
  refresh();
}

// ---- logged values ----

function startSeries(place, run, host) {
  if (!host) return;
  if (!run.series.length) { element("p", { class: "missing" }, host, "No logged values: see the end of this page for the reason."); return; }
  const order = (name) => (/loss|gap/i.test(name) ? 0 : /(^|[/_-])lr/i.test(name) ? 1 : 2);
  const sorted = [...run.series].sort((a, b) => order(a.name) - order(b.name));
  const grid = element("div", { class: "several" }, host);
  const draw = (series) => {
    new Chart(grid, {
      title: series.name, x: run.unit, y: series.mean ? "mean of some rounds each" : "value", whole: true, height: 220, places: series.steps,
      lines: [{ name: series.name, colour: 1, x: series.steps, y: series.values, silent: true }],
      describe: (at) => `${run.unit} ${series.steps[at]}\n${series.name} ${series.values[at]}`,
    });
  };
  sorted.slice(0, MOST_SERIES).forEach(draw);
  if (sorted.length > MOST_SERIES) {
    const more = element("button", { type: "button" }, host, `Show ${sorted.length - MOST_SERIES} more`);
    more.addEventListener("click", () => { more.remove(); sorted.slice(MOST_SERIES).forEach(draw); });
  }
}

// ---- several runs ----

// A chart for each way in which a score was measured: values of other embeddings or images do not compare.
function startCompared() {
  const host = document.querySelector('[data-chart="compared"]');
  if (!host || !data.axes.length) return;
  const names = [...new Set(data.axes.map((axis) => axis.column))];
  const controls = element("div", { class: "controls noprint" }, host), charts = element("div", {}, host);
  const select = choice(controls, "score", names, Math.max(0, names.indexOf(`${data.runs[0].first.score}_all`)));
  const refresh = () => {
    const own = data.axes.filter((axis) => axis.column === names[Number(select.value)]);
    charts.replaceChildren();
    charts.className = own.length > 1 ? "several" : "";
    for (const axis of own) {
      const place = element("div", {}, charts);
      if (own.length > 1) element("h4", {}, place, axis.name);
      new Chart(place, { ...comparedSpec(axis), ...(own.length > 1 ? { title: "" } : {}) });
    }
  };
  select.addEventListener("change", refresh);
  refresh();
}

function comparedSpec(axis) {
  const lines = axis.lines.map(([k, column]) => {
    const run = data.runs[k], line = run.panels.flatMap((panel) => panel.lines).find((one) => one.column === column);
    return { name: run.name, colour: k % 7, mark: k % 3, dash: k % DASHES.length, x: line.rounds, y: line.values, error: twice(line.errors), errors: line.errors, floor: line.floor };
  });
  const places = [...new Set(lines.flatMap((line) => line.x))].sort((a, b) => a - b);
  return {
    title: axis.column, x: "round", y: axis.column, whole: true, places, lines,
    floors: lines.filter((line) => line.floor).map((line) => ({ name: `floor of ${line.name}`, colour: line.colour, y: line.floor.value })),
    describe: (at) => [roundName(places[at]), ...lines.filter((line) => line.x.includes(places[at])).map((line) => {
      const k = line.x.indexOf(places[at]);
      return `${line.name}: ${formatted(line.y[k], line.errors[k])}`;
    })].join("\n"),
  };
}

function startCopying() {
  for (const button of document.querySelectorAll("button.copy")) {
    button.addEventListener("click", async () => {
      const text = button.parentElement.querySelector("pre");
      try {
        await navigator.clipboard.writeText(text.textContent);
      } catch {
        const range = document.createRange();
        range.selectNodeContents(text);
        getSelection().removeAllRanges();
        getSelection().addRange(range);
        document.execCommand("copy");
      }
      button.textContent = "Copied";
    });
  }
}

startTheme();
startReloading();
startCopying();
startCompared();
data.runs.forEach((run, place) => {
  const host = document.querySelector(`[data-run="${place}"]`), part = (name) => host.querySelector(`[data-part="${name}"]`);
  const first = Math.max(0, run.panels.findIndex((panel) => panel.name === run.first.score));
  const state = { panel: Math.min(chosen.get(`panel${place}`, first), Math.max(0, run.panels.length - 1)), picked: null, listeners: [], changed: () => state.listeners.forEach((listener) => listener()) };
  if (part("scores")) startScores(place, run, part("scores"), state);
  if (part("clients")) startClients(place, run, part("clients"), state);
  startSamples(place, run, part("samples"));
  startSeries(place, run, part("series"));
});
document.documentElement.dataset.ready = "";
