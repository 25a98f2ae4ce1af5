// The grid of layers and heads, and the card of one head. All it shows is in the page, see head_cards.py.
(() => {
  const data = document.getElementById("heads-data");
  if (!data) return;
  const { models, scales } = JSON.parse(data.textContent);
  const byId = (name) => document.getElementById(`heads-${name}`);
  const [modelBox, seriesBox, minusBox, about, grids, card] = ["model", "series", "minus", "about", "grids", "card"].map(byId);
  const SVG = byId("svg").namespaceURI;
  let chosen = null; // [stack, layer, head] that the card stays with
  let read = ""; // the sentence that cards show, where there are several

  function make(name, attributes = {}, ...children) {
    const element = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.append(...children);
    return element;
  }

  function draw(name, attributes = {}, ...children) {
    const element = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.append(...children);
    return element;
  }

  const finite = (value) => typeof value === "number";
  // Three decimals as in the tables, but no sign of what was rounded to zero.
  function words(value) {
    if (!finite(value)) return "–";
    const size = Math.abs(value);
    if (size > 0 && size < 0.0005) return value.toExponential(1);
    return size < 1000 ? value.toFixed(3).replace(/^-(?=0\.0+$)/, "") : value.toPrecision(4);
  }

  // A number with its unit: shares in per cent, of what they are shares of.
  function amount(value, unit, of = true) {
    if (!finite(value)) return "–";
    const kind = /^(share|points)\b/.exec(unit)?.[0];
    if (!kind) return of && unit ? `${words(value)} ${unit}` : words(value);
    const number = (100 * value).toFixed(1).replace(/^-(?=0\.0$)/, "");
    return `${number} ${kind === "share" ? "%" : kind}${of ? unit.slice(kind.length) : ""}`;
  }

  function short(value) {
    if (!finite(value)) return "";
    const size = Math.abs(value);
    const text = size < 9.95 ? value.toFixed(2) : size < 99.5 ? value.toFixed(1) : value.toPrecision(3);
    return text.replace(/^(-?)0\./, "$1.").replace(/^-(?=\.0+$)/, "");
  }

  const channels = (hex) => [1, 3, 5].map((start) => parseInt(hex.slice(start, start + 2), 16));

  function mix(stops, place) {
    const at = Math.min(1, Math.max(0, place)) * (stops.length - 1);
    const low = Math.min(stops.length - 2, Math.floor(at));
    const [a, b] = [channels(stops[low]), channels(stops[low + 1])];
    return a.map((value, i) => Math.round(value + (at - low) * (b[i] - value)));
  }

  // Black or white, whichever can be read on a colour (relative luminance, WCAG 2).
  function inkOn(rgb) {
    const [r, g, b] = rgb.map((v) => v / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179 ? "#000" : "#fff";
  }

  const css = (rgb) => `rgb(${rgb.join(",")})`;
  const model = () => models[Number(modelBox.value)];
  const series = () => model().series[Number(seriesBox.value)];
  // The title, with the run where others of the model are called the same.
  const named = (one, all = model().series) => (all.filter((other) => other.title === one.title).length > 1 ? `${one.title} · ${one.run}` : one.title);

  // What is subtracted: series of the same kind, of other runs and models.
  function minus() {
    if (minusBox.value === "") return null;
    const [m, s] = minusBox.value.split(" ").map(Number);
    return models[m].series[s];
  }

  function fill(box, entries) {
    const before = box.selectedOptions[0]?.textContent;
    box.replaceChildren(...entries.map(([value, text]) => make("option", { value }, text)));
    const again = [...box.options].find((option) => option.textContent === before);
    if (again) box.value = again.value;
    box.disabled = entries.length < 2;
    box.closest("label").hidden = entries.length < 2;
  }

  function fillSeries() {
    fill(seriesBox, model().series.map((one, number) => [number, named(one)]));
    fillMinus();
  }

  function fillMinus() {
    const own = series();
    const others = models.flatMap((m, i) => m.series.map((one, j) => [m, one, i, j]));
    const fitting = others.filter(([, one]) => one.key === own.key && one !== own && !own.categories.length);
    fill(minusBox, [["", "nothing"], ...fitting.map(([m, one, i, j]) => [`${i} ${j}`, models.length > 1 ? `${m.name} · ${one.run}` : one.run])]);
  }

  // What a model was before heads were removed from it, and the same series of it.
  const whole = () => models[model().before];
  const earlier = (one) => whole()?.series.find((other) => other.key === one.key);
  const removed = (stack, layer, head) => model().removed.includes(`${stack}.${layer}.${head}`);
  const source = (...place) => (removed(...place) ? earlier(series()) : series());

  // A removed head has the value that it had.
  function valueOf(stack, layer, head) {
    const value = source(stack, layer, head)?.values[stack]?.[layer]?.[head];
    const other = minus();
    if (!other) return value ?? null;
    const against = other.values[stack]?.[layer]?.[head];
    return finite(value) && finite(against) && !removed(stack, layer, head) ? value - against : null;
  }

  const letterOf = (stack, layer, head) => source(stack, layer, head)?.letters[stack]?.[layer]?.[head] ?? "";

  function allValues() {
    return Object.entries(model().stacks).flatMap(([stack, [layers, heads]]) =>
      Array.from({ length: layers * heads }, (_, i) => valueOf(stack, Math.floor(i / heads), i % heads)),
    );
  }

  // Limits of the colours, the same for all stacks; 0 in the middle of those that have two sides.
  function limits() {
    const known = allValues().filter(finite);
    if (!known.length) return [0, 1];
    if (series().diverging || minus()) {
      // Never fitted to noise: no narrower than the usual interval.
      const largest = Math.max(...known.map(Math.abs), usualInterval(), (!minus() && series().high) || 0) || 1;
      return [-largest, largest];
    }
    const [low, high] = [Math.min(0, ...known), Math.max(...known, series().high ?? 0)];
    return [low, high > low ? high : low + 1];
  }

  function usualInterval() {
    const { lows, highs } = series();
    if (minus()) return 0;
    const widths = Object.keys(model().stacks).flatMap((stack) => (highs[stack] ?? []).flatMap((row, layer) => row.map((high, head) => [lows[stack]?.[layer]?.[head], high])));
    const known = widths.filter(([low, high]) => finite(low) && finite(high)).map(([low, high]) => high - low).sort((a, b) => a - b);
    return known.length ? known[Math.floor((known.length - 1) / 2)] : 0;
  }

  // Whether a difference is not significant, or its interval holds 0: its colour must not be taken for a finding.
  function unsure(stack, layer, head) {
    if (minus() || !series().diverging) return false;
    const one = source(stack, layer, head);
    const sure = one?.sure[stack]?.[layer]?.[head];
    if (finite(sure)) return !sure;
    const [low, high] = [one?.lows[stack]?.[layer]?.[head], one?.highs[stack]?.[layer]?.[head]];
    return finite(low) && finite(high) && low <= 0 && high >= 0;
  }

  const pale = (rgb) => rgb.map((value) => Math.round(value + 0.65 * (255 - value)));

  // From red to blue; what is bad is red.
  function colours() {
    const { diverging, worse } = series();
    if (!diverging && !minus()) return scales.sequential;
    return worse ? [...scales.diverging].reverse() : scales.diverging;
  }

  function colour(value, [low, high]) {
    const { categories } = series();
    if (!finite(value)) return null;
    if (categories.length) return categories[value][1] ? channels(categories[value][1]) : null;
    return mix(colours(), (value - low) / (high - low));
  }

  function told(stack, layer, head) {
    const value = valueOf(stack, layer, head);
    const { categories, title } = series();
    const text = categories.length && finite(value) ? [categories[value][0], letterOf(stack, layer, head)].filter(Boolean).join(" ") : words(value);
    const gone = removed(stack, layer, head) ? ", removed" : "";
    return `${stack} layer ${layer} head ${head}${gone}, ${title}: ${finite(value) ? text : "no value"}`;
  }

  function paint() {
    const ends = limits();
    const { categories, title, about: text } = series();
    const doubtful = Object.entries(model().stacks).some(([stack, [layers, heads]]) => Array.from({ length: layers * heads }, (_, i) => unsure(stack, Math.floor(i / heads), i % heads)).some(Boolean));
    const shown = minus() ? `${text} The difference is shown.` : doubtful ? `${text} Pale: ${series().pale || (Object.keys(series().sure).length ? "not significant" : "the interval contains 0")}.` : text;
    about.replaceChildren(...shown.split("`").map((part, number) => (number % 2 ? make("code", {}, part) : part)));
    const scroll = grids.querySelector(".scroll")?.scrollLeft ?? 0;
    grids.replaceChildren(...Object.entries(model().stacks).map(([stack, size]) => grid(stack, size, ends)), legend(ends));
    for (const box of grids.querySelectorAll(".scroll")) {
      box.scrollLeft = scroll;
      watch(box);
    }
    const there = chosen && grids.querySelector(cellName(...chosen));
    if (!there) chosen = model().first;
    const cell = grids.querySelector(cellName(...chosen));
    cell.classList.add("chosen");
    cell.tabIndex = 0;
    show(...chosen);

    function grid(stack, [layers, heads], limits) {
      const head = make("tr", {}, make("td"), ...Array.from({ length: heads }, (_, h) => make("th", { scope: "col" }, String(h))));
      const rows = Array.from({ length: layers }, (_, i) => layers - 1 - i).map((layer) =>
        make("tr", {}, make("th", { scope: "row" }, String(layer)), ...Array.from({ length: heads }, (_, h) => cellOf(stack, layer, h, limits))),
      );
      const table = make("table", { role: "grid", "aria-label": `${stack}: layers by heads, ${title}` }, make("tbody", {}, ...rows), make("tfoot", {}, head));
      return make("div", { class: "stack" }, make("h3", {}, stack), make("div", { class: "scroll" }, table));
    }

    function cellOf(stack, layer, h, limits) {
      const value = valueOf(stack, layer, h);
      const full = colour(value, limits);
      const rgb = full && unsure(stack, layer, h) ? pale(full) : full;
      const shown = categories.length ? letterOf(stack, layer, h) : short(value);
      const made = make("td", { role: "gridcell", tabindex: "-1", "data-head": `${stack} ${layer} ${h}`, "aria-label": told(stack, layer, h) }, shown);
      if (finite(value) && removed(stack, layer, h)) {
        made.classList.add("removed");
        made.style.setProperty("--was", rgb ? css(rgb) : "var(--line)");
      } else if (rgb) {
        made.style.backgroundColor = css(rgb);
        made.style.color = inkOn(rgb);
      } else made.classList.add(finite(value) ? "plain" : "none");
      return made;
    }

    function legend([low, high]) {
      const gone = model().removed.length ? [make("span", {}, make("i", { class: "removed" }), minus() ? "removed" : `removed (frame and text: value in ${whole().name})`)] : [];
      if (categories.length) {
        const present = new Set(allValues());
        const entries = categories.filter((_, number) => present.has(number)).map(([name, hex]) => {
          const square = make("i");
          if (hex) square.style.backgroundColor = hex;
          else square.className = "plain";
          return make("span", {}, square, name);
        });
        return make("p", { class: "legend" }, ...entries, ...gone);
      }
      const bar = make("i", { class: "bar" });
      bar.style.background = `linear-gradient(to right, ${colours().join(", ")})`;
      return make("p", { class: "legend" }, words(low), bar, words(high), ...(minus() ? [] : compared()), ...gone);
    }
  }

  // What the numbers of the map are to be compared with, over all heads that have it.
  function compared() {
    return series().beside.map(([what, grids]) => {
      const known = Object.values(grids).flat(2).filter(finite);
      const ends = known.length ? [...new Set([Math.min(...known), Math.max(...known)].map(words))] : [];
      return ends.length ? make("span", {}, `${what}: ${ends.join(" to ")}`) : "";
    });
  }

  const cellName = (stack, layer, head) => `td[data-head="${stack} ${layer} ${head}"]`;
  const headOf = (cell) => {
    const [stack, layer, head] = cell.dataset.head.split(" ");
    return [stack, Number(layer), Number(head)];
  };

  function show(stack, layer, head) {
    const place = `${stack}.${layer}.${head}`;
    const gone = removed(stack, layer, head);
    const own = gone ? whole() : model();
    const parts = [make("h3", {}, place)];
    if (gone) parts.push(make("p", { class: "about" }, `Removed. Its values in ${own.name}:`));
    const { words: lists, shares, maps } = own;
    for (const one of lists)
      if (one.heads[place]) parts.push(make("h4", {}, named(one, lists)), make("ul", {}, ...one.heads[place].map((line) => make("li", {}, line))));
    for (const one of shares)
      if (one.heads[place]) parts.push(make("h4", {}, named(one, shares)), bars(one.title, one.categories, one.heads[place]));
    const seen = maps.filter((one) => one.heads[place]);
    if (seen.length) parts.push(make("h4", {}, "Attention on a sentence"), ...sentences(seen, place));
    parts.push(make("h4", {}, "Numbers"), numbers(own, stack, layer, head));
    card.replaceChildren(...parts);
    card.setAttribute("aria-label", `Head ${place}`);
    scrolled(card);
  }

  function numbers(own, stack, layer, head) {
    const at = (grid) => grid?.[stack]?.[layer]?.[head];
    const text = (one) => (one?.categories.length ? [one.categories[at(one.values)]?.[0], at(one.letters)].filter(Boolean).join(" ") : one ? [at(one.leads), amount(at(one.values), one.unit)].filter(Boolean).join(" in ") + (finite(at(one.counts)) ? ` (n = ${at(one.counts).toLocaleString("en")})` : "") : "–");
    // Of a head that stayed, also what it was before.
    const pruned = own.before !== null;
    const shown = own.series.filter((one) => finite(at(one.values)) && (pruned || !one.categories.length));
    const levels = (one) => one.beside.filter(([, grids]) => finite(at(grids))).map(([what, grids]) => `${what} ${amount(at(grids), one.unit, false)}`);
    const compared = shown.some((one) => levels(one).length);
    const rows = shown.map((one) => {
      const [low, high] = [at(one.lows), at(one.highs)];
      const bounds = finite(low) && finite(high) ? `${amount(low, one.unit, false).replace(/ .*/, "")} to ${amount(high, one.unit, false)}` : "";
      const was = pruned ? [make("td", {}, text(earlier(one)))] : [];
      const beside = compared ? [make("td", {}, levels(one).join("; "))] : [];
      return make("tr", {}, make("th", { scope: "row" }, named(one, own.series)), make("td", {}, text(one)), make("td", {}, bounds), ...was, ...beside);
    });
    const titles = ["", "value", "95 % interval", ...(pruned ? ["before"] : []), ...(compared ? ["compared with"] : [])];
    const heading = make("tr", {}, ...titles.map((title) => make("th", { scope: "col" }, title)));
    return make("table", {}, make("thead", {}, heading), make("tbody", {}, ...rows));
  }

  function bars(title, categories, shares) {
    const [width, height] = [16, 70];
    const largest = Math.max(...shares) || 1;
    const told = categories.map((name, i) => [name, shares[i]]).sort((a, b) => b[1] - a[1]).slice(0, 3);
    const label = `${title}: ${told.map(([name, share]) => `${name} ${(100 * share).toFixed(0)} %`).join(", ")}`;
    const size = [categories.length * width, height + 16];
    const box = draw("svg", { viewBox: `0 0 ${size.join(" ")}`, width: size[0], height: size[1], role: "img", "aria-label": label, class: "bars" });
    categories.forEach((name, i) => {
      const tall = (shares[i] / largest) * height;
      const bar = draw("rect", { x: i * width + 1, y: height - tall, width: width - 2, height: tall });
      bar.append(draw("title", {}, `${name}: ${(100 * shares[i]).toFixed(1)} %`));
      const word = draw("text", { x: (i + 0.5) * width, y: height + 12, "text-anchor": "middle" }, name);
      box.append(bar, word);
    });
    return box;
  }

  // The map of one sentence, and which one where there are several.
  function sentences(all, place) {
    const label = (one) => named({ ...one, title: one.text }, all.map((other) => ({ ...other, title: other.text })));
    const first = all.find((one) => label(one) === read) ?? all[0];
    const box = make("div", {}, ...sentence(first.queries, first.keys, first.heads[place]));
    if (all.length < 2) return [make("p", { class: "about" }, first.text), box];
    const picker = make("select", { "aria-label": "Sentence" }, ...all.map((one) => make("option", {}, label(one))));
    picker.selectedIndex = all.indexOf(first);
    picker.addEventListener("change", () => {
      const now = all[picker.selectedIndex];
      read = label(now);
      box.replaceChildren(...sentence(now.queries, now.keys, now.heads[place]));
    });
    return [picker, box];
  }

  function sentence(queries, keys, text) {
    const weights = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    const cell = Math.max(9, Math.min(16, Math.floor(260 / keys.length)));
    const room = 7 * Math.max(...[...queries, ...keys].map((token) => Math.min(12, token.length)));
    const cut = (token) => (token.length > 12 ? `${token.slice(0, 11)}…` : token);
    const size = [room + keys.length * cell, room + queries.length * cell];
    const pairs = Array.from(weights, (w, i) => [w / 255, queries[Math.floor(i / keys.length)], keys[i % keys.length]]);
    const top = [...pairs].sort((a, b) => b[0] - a[0]).slice(0, 5).map(([w, q, k]) => `${q} → ${k} ${(100 * w).toFixed(0)} %`);
    const label = `Attention, queries in rows; most: ${top.join(", ")}`;
    const box = draw("svg", { viewBox: `0 0 ${size.join(" ")}`, width: size[0], height: size[1], role: "img", "aria-label": label, class: "map" });
    keys.forEach((token, k) => box.append(draw("text", { transform: `translate(${room + (k + 0.7) * cell} ${room - 3}) rotate(-90)` }, cut(token))));
    queries.forEach((token, q) => {
      box.append(draw("text", { x: room - 3, y: room + (q + 0.75) * cell, "text-anchor": "end" }, cut(token)));
      keys.forEach((key, k) => {
        const weight = weights[q * keys.length + k] / 255;
        const square = draw("rect", { x: room + k * cell, y: room + q * cell, width: cell, height: cell, fill: css(mix(scales.pale, weight)) });
        square.append(draw("title", {}, `${token} → ${key}: ${(100 * weight).toFixed(0)} %`));
        box.append(square);
      });
    });
    const scroll = make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Attention on a sentence" }, box);
    return [watch(scroll), make("p", { class: "about" }, `Most: ${top.join(", ")}.`)];
  }

  function choose(cell) {
    for (const other of grids.querySelectorAll("td[tabindex='0']")) other.tabIndex = -1;
    for (const other of grids.querySelectorAll("td.chosen")) other.classList.remove("chosen");
    cell.tabIndex = 0;
    cell.classList.add("chosen");
    chosen = headOf(cell);
    show(...chosen);
  }

  grids.addEventListener("pointerover", (event) => {
    const cell = event.target.closest("td[data-head]");
    if (cell && event.pointerType !== "touch") show(...headOf(cell));
  });
  grids.addEventListener("pointerleave", () => show(...chosen));
  grids.addEventListener("focusin", (event) => {
    const cell = event.target.closest("td[data-head]");
    if (cell) choose(cell);
  });
  grids.addEventListener("keydown", (event) => {
    const cell = event.target.closest("td[data-head]");
    if (!cell) return;
    const [stack, layer, head] = headOf(cell);
    const last = model().stacks[stack].map((count) => count - 1);
    const moves = {
      ArrowUp: [layer + 1, head], ArrowDown: [layer - 1, head], ArrowLeft: [layer, head - 1], ArrowRight: [layer, head + 1],
      Home: [layer, 0], End: [layer, last[1]], PageUp: [last[0], head], PageDown: [0, head],
    };
    if (event.key === "Enter" || event.key === " ") card.focus();
    else if (moves[event.key]) grids.querySelector(cellName(stack, ...moves[event.key]))?.focus();
    else return;
    event.preventDefault();
  });
  card.addEventListener("keydown", (event) => {
    if (event.key === "Escape") grids.querySelector(cellName(...chosen)).focus();
  });

  modelBox.addEventListener("change", () => (fillSeries(), paint()));
  seriesBox.addEventListener("change", () => (fillMinus(), paint()));
  minusBox.addEventListener("change", paint);
  fill(modelBox, models.map((one, number) => [number, one.name]));
  // A pruned model shows the heads of the whole one, too.
  modelBox.value = Math.max(0, models.findIndex((one) => one.before !== null));
  fillSeries();
  paint();
  document.getElementById("explorer").hidden = false;
  watch(card);
})();
