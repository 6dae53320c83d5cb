/* Search of PAGES (pages.js: [{title, address, sections: [{title, anchor, text}]}]) for the words of the address's ?q=. */
"use strict";
(() => {
  const SMALL = new Set("a an and are as at be by can do does for from how i if in is it my of on or so the to what when which who why with".split(" "));
  const SAME = { leave: "leav|left", leaving: "leav|left", left: "leav|left" };
  const REFERENCE = /^(api\/|changelog|benchmark-figures|optimizers)/; // long pages: last among equals
  const MOST = { pages: 20, sections: 3 };

  /* a word and its other endings, at the start of words; a short word must be whole */
  const patternOf = (word) => {
    const stem = word.length < 5 ? word.replace(/s$/, "") : word.replace(/(ing|ed|es|s|e)$/, "");
    const same = SAME[word] ?? stem.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
    return new RegExp(`(?<![a-z0-9])(?:${same})${stem.length < 4 ? "s?(?![a-z0-9])" : "[a-z]*"}`, "gi");
  };
  const wordsOf = (query) => {
    const words = [...new Set(query.toLowerCase().split(/[^\p{L}\p{N}._-]+/u).filter(Boolean))];
    const telling = words.filter((word) => !SMALL.has(word));
    return telling.length ? telling : words;
  };

  /* the start of a stretch of a text that holds most of the words, and how many it holds */
  const stretchOf = (text, patterns, length) => {
    const starts = patterns.flatMap((pattern) => [...text.matchAll(pattern)].map((match) => match.index)).sort((a, b) => a - b);
    const held = (start) => patterns.filter((pattern) => text.slice(start, start + length).match(pattern)).length;
    return starts.map((start) => [start, held(start)]).reduce((best, one) => (one[1] > best[1] ? one : best), [0, 0]);
  };

  /* sections with all words (with some where none has all), best first: rare words, titles and words near each other count */
  const search = (patterns) => {
    const sections = PAGES.flatMap((page) => page.sections.map((section) => ({ page, ...section })));
    const mean = sections.reduce((sum, { text }) => sum + text.length, 0) / sections.length;
    const hits = (text, pattern) => (text.match(pattern) ?? []).length;
    const points = sections.map(({ page, title, text }) => patterns.map((pattern) => {
      const times = hits(text, pattern);
      const inTitles = 3 * (hits(title, pattern) > 0) + 2 * (hits(page.title, pattern) > 0);
      return inTitles + (2 * times) / (times + 0.5 + text.length / mean);
    }));
    const rarity = patterns.map((_, k) => Math.log(1 + sections.length / (1 + points.filter((own) => own[k] > 0).length)));
    const found = sections.map((section, place) => {
      const held = points[place].filter((value) => value > 0).length;
      const isNear = held && stretchOf(`${section.title}. ${section.text}`, patterns, 50)[1] === patterns.length;
      const weight = (isNear ? 2 : 1) * (REFERENCE.test(section.page.address) ? 0.35 : 1);
      return { ...section, held, score: weight * points[place].reduce((all, value, k) => all + value * rarity[k], 0) };
    });
    const most = Math.max(...found.map(({ held }) => held), 1);
    return found.filter(({ held }) => held === most).sort((one, other) => other.score - one.score);
  };

  /* the 240 characters of a text with most of the words */
  const excerptOf = (text, patterns) => {
    const [best] = stretchOf(text, patterns, 180);
    const from = best < 60 ? 0 : text.indexOf(" ", best - 60) + 1;
    const to = text.length < from + 240 ? text.length : text.lastIndexOf(" ", from + 240);
    return `${from ? "… " : ""}${text.slice(from, to)}${to < text.length ? " …" : ""}`;
  };

  const element = (name, ...content) => {
    const made = document.createElement(name);
    made.append(...content);
    return made;
  };
  const link = (text, address) => Object.assign(element("a", text), { href: address });
  const marked = (text, patterns) => {
    const any = new RegExp(`(${patterns.map((pattern) => pattern.source).join("|")})`, "gi");
    return element("p", ...text.split(any).map((part, k) => (k % 2 ? element("mark", part) : part)));
  };
  const shown = (page, sections, patterns) => element("section", element("h2", link(page.title, page.address)),
    ...sections.flatMap(({ title, anchor, text }) => [
      ...(title === page.title ? [] : [element("h3", link(title, `${page.address}#${anchor}`))]),
      marked(excerptOf(text, patterns), patterns),
    ]));

  const query = new URLSearchParams(location.search).get("q")?.trim() ?? "";
  document.querySelectorAll("input[name=q]").forEach((input) => (input.value = query));
  if (!query) return;
  const patterns = wordsOf(query).map(patternOf);
  const pages = Map.groupBy(patterns.length ? search(patterns) : [], ({ page }) => page);
  document.querySelector("#found").textContent = `${pages.size || "No"} page${pages.size === 1 ? "" : "s"} for “${query}”.`;
  document.querySelector("#results").append(...[...pages].slice(0, MOST.pages).map(([page, sections]) =>
    shown(page, sections.slice(0, MOST.sections), patterns)));
})();
