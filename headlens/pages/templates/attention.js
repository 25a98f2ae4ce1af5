// Attention on sentences, head by head and token by token. All it shows is in the page, see attention_page.py.
document.querySelectorAll(".attention-view").forEach((root) => {
  "use strict";
  const { unpack, isMissing, percent, quoted, unitsOf, look, thumbnail, telling, most, gives, gets } = attentionWeights;
  const { partsOf, scored, hasRest, about: aboutScores, inWords, ofDimension, drawStrip, decimal } = attentionScores;
  const data = JSON.parse(root.querySelector("template").content.textContent);
  const LOOKS = { lines: "Lines", layer: "Whole layer", matrix: "Matrix", scores: "Query × keys" };
  const UNITS = { tokens: "Subwords", words: "Words" };
  const SPECIAL = { shown: "shown", out: "left out", scaled: "left out, the rest rescaled to 100 %" };
  const PAIRS = { all: "all", "0-1": "first → second", "1-0": "second → first", "0-0": "within the first", "1-1": "within the second" };
  const chosen = { sentence: 0, stack: "", look: "lines", units: "tokens", special: "shown", pair: "all" };
  const heads = data.states.map(() => null); // layer and head of each state
  const hidden = new Set(); // heads that are switched off where a whole layer is shown, by their numbers
  const added = new Set(); // heads of other layers that are shown with it, such as "2.8"
  const panels = []; // what is shown of each state
  let pinned = null; // [state, side, number] of the token that a click keeps
  let asked = -1; // number of the query whose scores are shown
  let pass = 0; // of two paintings under way only the later one is shown

  function make(name, attributes = {}, ...children) {
    const element = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.append(...children);
    return element;
  }

  // A page of its own keeps what is shown in its address, so that a copied address shows the same.
  const alone = "measuring" in data;
  // In a frame of another page, which has a title of its own, there is little room.
  if (alone && window.parent !== window) document.body.classList.add("framed");

  function remember() {
    if (!alone) return;
    const shown = heads.map((head) => (head ? head.join(".") : "")).join(",");
    const parts = new URLSearchParams({ ...chosen, heads: shown, token: pinned ? pinned.join(".") : "", hidden: [...hidden].join("."), added: [...added].join(",") });
    try {
      history.replaceState(null, "", `#${parts}`);
    } catch {
      // A page within a notebook has no address.
    }
  }

  function recall() {
    if (!alone || location.hash.length < 2) return;
    const given = new URLSearchParams(location.hash.slice(1));
    const whole = (text) => (/^[0-9]+$/.test(text ?? "") ? Number(text) : null);
    chosen.sentence = data.sentences[whole(given.get("sentence"))] ? whole(given.get("sentence")) : 0;
    for (const [name, known] of [["look", Object.keys(looks())], ["units", Object.keys(UNITS)], ["special", Object.keys(SPECIAL)], ["pair", Object.keys(PAIRS)], ["stack", stacks()]])
      if (known.includes(given.get(name))) chosen[name] = given.get(name);
    const headOf = (text) => {
      const numbers = text.split(".").map(whole);
      return numbers.length === 2 && !numbers.includes(null) ? numbers : null;
    };
    (given.get("heads") ?? "").split(",").slice(0, heads.length).forEach((text, state) => (heads[state] = headOf(text) ?? heads[state]));
    hidden.clear();
    for (const text of (given.get("hidden") ?? "").split(".")) if (whole(text) !== null) hidden.add(whole(text));
    added.clear();
    for (const text of (given.get("added") ?? "").split(",")) if (headOf(text)) added.add(headOf(text).join("."));
    pinned = null;
    const [state, side, number] = (given.get("token") ?? "").split(".");
    if (whole(state) < heads.length && ["queries", "keys"].includes(side) && whole(number) !== null) pinned = [whole(state), side, whole(number)];
  }

  const sentence = () => data.sentences[chosen.sentence];
  const stacks = () => [...new Set(sentence().maps.map((own) => own.stack))];
  const keepsScores = () => data.sentences.some((one) => one.maps.some((own) => own.scores));
  const looks = () => Object.fromEntries(Object.entries(LOOKS).filter(([key]) => key !== "scores" || keepsScores()));
  // Scores are of single tokens, and of all of them.
  const seen = () => (chosen.look === "scores" ? { ...chosen, units: "tokens", special: "shown", pair: "all" } : chosen);
  const mapOf = (state) => sentence().maps.find((own) => own.state === state && own.stack === chosen.stack);
  // A colour of the page, for all weights its accent, in its light or dark form.
  function shade(name = "--accent") {
    const hex = getComputedStyle(document.documentElement).getPropertyValue(name).trim();
    return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
  }

  function picker(text, entries, value, change, kind = "") {
    const box = make("select", {}, ...entries.map(([key, label]) => make("option", { value: key }, label)));
    box.value = value;
    box.addEventListener("change", () => change(box.value));
    return make("label", { class: kind, ...(entries.length < 2 ? { hidden: "" } : {}) }, `${text} `, box);
  }

  function ways(text, names, name) {
    const buttons = Object.entries(names).map(([key, label]) => {
      const button = make("button", { type: "button", "aria-pressed": String(chosen[name] === key) }, label);
      button.addEventListener("click", () => {
        for (const other of buttons) other.setAttribute("aria-pressed", String(other === button));
        set(name, key);
      });
      return button;
    });
    return make("span", { class: `ways of-${name}`, role: "group", "aria-label": text }, ...buttons);
  }

  function set(name, value) {
    chosen[name] = value;
    pinned = null;
    asked = -1;
    if (name === "sentence") {
      const chooses = bar.contains(document.activeElement);
      controls();
      if (chooses) bar.querySelector(".sentence select").focus();
    }
    paint();
  }

  const bar = make("div", { class: "bar" });
  const about = make("p", { class: "about" });
  const states = make("div", { class: "states" });

  function controls() {
    const [first] = sentence().maps;
    if (!stacks().includes(chosen.stack)) chosen.stack = first.stack;
    const groups = sentence().maps.flatMap((own) => [own.query_groups, own.key_groups]);
    const known = groups.every(Boolean);
    const pieces = known && groups.some((own) => own.words.length > own.forms.length);
    if (!pieces) chosen.units = "tokens";
    const special = known && groups.some((own) => own.special.some(Boolean));
    if (!special) chosen.special = "shown";
    const paired = groups.some((own) => own?.texts?.length);
    if (!paired) chosen.pair = "all";
    bar.replaceChildren(
      picker("Sentence", data.sentences.map((one, i) => [i, one.text]), chosen.sentence, (i) => set("sentence", Number(i)), "sentence"),
      picker("Attention of", stacks().map((stack) => [stack, stack === "cross" ? "decoder to encoder (cross)" : stack]), chosen.stack, (stack) => set("stack", stack)),
      ways("How attention is shown", looks(), "look"),
      ...(pieces ? [ways("Parts of the sentence", UNITS, "units")] : []),
      ...(special ? [picker("Special tokens", Object.entries(SPECIAL), chosen.special, (how) => set("special", how), "of-special")] : []),
      ...(paired ? [picker("Texts", Object.entries(PAIRS), chosen.pair, (which) => set("pair", which), "of-pair")] : []),
    );
  }

  function tellLeftOut(more) {
    const [what, they] = data.left_out === 1 ? ["sentence is", "it"] : ["sentences are", "they"];
    return `${data.left_out}${more} ${what} left out because ${they} would make this page too large.`;
  }

  function tellAbout() {
    for (const one of bar.querySelectorAll(".of-units, .of-special, .of-pair")) one.hidden = chosen.look === "scores";
    if (chosen.look === "scores") {
      about.replaceChildren("Choose a token in the row: its query, the key of every token and their products, dimension by dimension, as the model multiplies them (after rotary embedding, where it has one). ", make("b", { class: "above" }, "Blue"), " is above 0, ", make("b", { class: "below" }, "orange"), " below; shades darken with the square root. Numbers are of single precision, of tokens as the model reads them.");
      return;
    }
    const lines = "Tokens on the left attend to tokens on the right; the strength of a line shows the attention weight";
    const how = { lines: `${lines}.`, layer: `${lines}, its colour the head. A head that is kept stays, dashed, when another layer is chosen.`, matrix: "Tokens at the side attend to tokens along the top." }[chosen.look];
    const shades = make("i", { class: "scale", role: "img", "aria-label": "from pale to strong" });
    const units = chosen.units === "words" ? " Weights to the subwords of a word are summed; weights from them are averaged." : "";
    const special = { shown: "", out: " Special tokens are left out; the other weights are unchanged.", scaled: " Special tokens are left out, and the weight of each token on the remaining ones is rescaled to 100 %; where less than 2 % remains, the row is left empty." }[chosen.special];
    const pair = chosen.pair === "all" ? "" : ` Only attention ${PAIRS[chosen.pair].replace(/^(first|second) → (first|second)$/, "from the $1 to the $2")} text is shown${chosen.special === "scaled" ? "" : "; weights are unchanged"}.`;
    const gone = data.left_out ? ` ${tellLeftOut(" more")}` : "";
    about.replaceChildren(`${how}${units}${special}${pair} Shades darken with the square root of the weight, 0 % `, shades, ` 100 %. Square roots of weights are rounded to 1/255, so a weight is off by at most 0.4 percentage points, and a small one by less.${gone}`);
  }

  async function paint() {
    const own = ++pass;
    try {
      await Promise.all(data.states.map((_, state) => mapOf(state)).filter(Boolean).map(unpack));
    } catch (error) {
      about.textContent = `This browser cannot unpack the weights (${error.message}); browsers released since 2023 can.`;
      return;
    }
    if (own !== pass) return;
    tellAbout();
    panels.length = 0;
    const focused = root.contains(document.activeElement) && document.activeElement.dataset.head;
    const at = focused && Number(document.activeElement.closest(".state").dataset.state);
    states.replaceChildren(...data.states.map((name, state) => panel(name, state)));
    if (focused) states.querySelectorAll(".state")[at].querySelector("td[tabindex='0']")?.focus();
    rest();
  }

  function panel(name, state) {
    const own = mapOf(state);
    const box = make("section", { class: data.states.length > 1 ? "state" : "state alone", "data-state": state, "aria-label": name }, make("h3", {}, make("bdi", {}, name)));
    if (!own) {
      box.append(make("p", { class: "remark" }, "This model has no such attention for this sentence."));
      return box;
    }
    const [from, to] = seen().pair === "all" || !own.query_groups?.texts?.length ? [null, null] : seen().pair.split("-").map(Number);
    const [queries, keys] = [unitsOf(own.queries, own.query_groups, seen(), from), unitsOf(own.keys, own.key_groups, seen(), to)];
    const shown = { own, state, queries, keys, place: make("div") };
    panels.push(shown);
    // Of one model the states begin with the same head.
    heads[state] ??= (data.linked && heads.find(Boolean)) || telling(shown, seen());
    heads[state] = heads[state].map((number, i) => Math.min(number, [own.layers, own.heads][i] - 1));
    box.append(watch(make("div", { class: "scroll" }, thumbnails(shown))), shown.place);
    showHead(shown);
    return box;
  }

  // Layer 0 is at the bottom, as in all figures.
  function thumbnails(shown) {
    const { own, state, queries, keys } = shown;
    const ink = shade();
    const cell = (layer, head) => {
      const name = `${own.stack}.${layer}.${head}`;
      const is = heads[state][0] === layer && heads[state][1] === head;
      const made = make("td", { role: "gridcell", tabindex: is ? "0" : "-1", "data-head": `${layer} ${head}`, "aria-selected": String(is), title: name });
      if (isMissing(own, layer, head)) {
        made.classList.add("removed");
        made.setAttribute("aria-label", `${name}, removed`);
        return made;
      }
      const { weights } = look(shown, layer, head, seen());
      const canvas = make("canvas", { "aria-hidden": "true" });
      thumbnail(canvas, weights, [queries.count, keys.count], ink);
      made.append(canvas);
      let most = 0;
      weights.forEach((weight, i) => (most = weight > weights[most] ? i : most));
      const [from, to] = [queries.labels[Math.floor(most / keys.count)], keys.labels[most % keys.count]];
      made.setAttribute("aria-label", weights.length ? `${name}; most: ${quoted(from)} gives ${percent(weights[most])} to ${quoted(to)}` : name);
      return made;
    };
    const numbers = Array.from({ length: own.heads }, (_, head) => head);
    const rows = Array.from({ length: own.layers }, (_, i) => own.layers - 1 - i).map((layer) => make("tr", {}, make("th", { scope: "row" }, String(layer)), ...numbers.map((head) => cell(layer, head))));
    const foot = make("tr", {}, make("td", { class: "corner" }), ...numbers.map((head) => make("th", { scope: "col" }, String(head))));
    const table = make("table", { role: "grid", class: "thumbnails", "aria-label": `${own.stack}: layers by heads` }, make("tbody", {}, ...rows), make("tfoot", {}, foot));
    table.style.setProperty("--heads", own.heads);
    table.addEventListener("click", (event) => {
      const cell = event.target.closest("td[data-head]");
      if (cell) choose(shown, ...cell.dataset.head.split(" ").map(Number));
    });
    table.addEventListener("keydown", (event) => {
      const [layer, head] = heads[state];
      const moves = { ArrowUp: [1, 0], ArrowDown: [-1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1], Home: [0, -head], End: [0, own.heads - 1 - head], PageUp: [own.layers - 1 - layer, 0], PageDown: [-layer, 0] };
      if (event.key === "Enter" || event.key === " ") shown.place.querySelector("button[tabindex='0']")?.focus();
      else if (moves[event.key]) choose(shown, layer + moves[event.key][0], head + moves[event.key][1]);
      else return;
      event.preventDefault();
    });
    return table;
  }

  // Of two states of one model the same head is shown.
  function choose(from, layer, head) {
    if (layer < 0 || head < 0 || layer >= from.own.layers || head >= from.own.heads) return;
    for (const shown of panels.filter((one) => one === from || data.linked)) {
      heads[shown.state] = [layer, head];
      const table = shown.place.parentElement.querySelector(".thumbnails");
      for (const cell of table.querySelectorAll("td[data-head]")) {
        const is = cell.dataset.head === `${layer} ${head}`;
        cell.setAttribute("aria-selected", String(is));
        cell.tabIndex = is ? 0 : -1;
        if (is && shown === from) cell.focus();
      }
      showHead(shown);
    }
    rest();
  }

  function showHead(shown) {
    const { own, state, queries, keys } = shown;
    const [layer, head] = heads[state];
    const title = make("h4", {}, `${own.stack}.${layer}.${head}`);
    if (isMissing(own, layer, head)) {
      Object.assign(shown, { weights: null });
      shown.place.replaceChildren(title, make("p", { class: "remark" }, "This head has been removed in this model."));
      return;
    }
    Object.assign(shown, look(shown, layer, head, seen()));
    shown.looking = [null, -1]; // the side and the number of the token that is pointed at
    shown.told = make("div", { class: "told", role: "status" });
    shown.parts = chosen.look === "scores" ? partsOf(own, layer, head) : null;
    if (chosen.look === "scores") return showScores(shown, title);
    const others = [...Array.from({ length: own.heads }, (_, other) => [layer, other]), ...[...added].map((name) => name.split(".").map(Number)).filter(([l, h]) => l !== layer && l < own.layers && h < own.heads)];
    const present = others.filter(([l, h]) => !isMissing(own, l, h));
    shown.overlaid = chosen.look === "layer" ? present.map(([l, h]) => ({ layer: l, head: h, elsewhere: l !== layer, weights: look(shown, l, h, chosen).weights })) : [];
    shown.lists = { queries: list("queries", queries.labels, "Attending tokens"), keys: list("keys", keys.labels, "Attended tokens") };
    shown.canvas = make("canvas", { role: "img", "aria-label": "The same as an image" });
    const grid = make("div", { class: `look ${chosen.look === "matrix" ? "matrix" : "lines"}` }, shown.lists.queries, shown.canvas, shown.lists.keys);
    const lines = queries.labels.map((_, q) => make("li", {}, gives(shown, q, chosen)));
    const words = make("details", { class: "words" }, make("summary", {}, "In words"), make("ul", {}, ...lines));
    shown.place.replaceChildren(title, ...(chosen.look === "layer" ? [chips(shown)] : []), watch(make("div", { class: "scroll" }, grid)), shown.told, words);
    listen(shown, grid);
    pointAtCells(shown);
  }

  function list(side, labels, text, more = () => []) {
    const button = (label, i) => make("button", { type: "button", tabindex: i ? "-1" : "0", "data-token": i, title: label }, label);
    return make("ul", { class: `side ${side}`, "aria-label": text }, ...labels.map((label, i) => make("li", {}, button(label, i), ...more(i))));
  }

  // Heads of other layers stand between those of the layer, in hue as well as by their dashes.
  const colourOf = (shown, { head, elsewhere }) => `hsl(${Math.round((360 * (head + (elsewhere ? 0.5 : 0))) / shown.own.heads)} 75% ${matchMedia("(prefers-color-scheme: dark)").matches ? 65 : 42}%)`;
  const isOn = ({ head, elsewhere }) => elsewhere || !hidden.has(head);

  // A button in its colour for each head, which switches its lines off and on; of one model in all states.
  function chips(shown) {
    const buttons = shown.overlaid.map((one) => {
      const button = make("button", { type: "button", "aria-pressed": String(isOn(one)), ...(one.elsewhere ? { title: "take away" } : {}) }, one.elsewhere ? `${one.layer}.${one.head}` : String(one.head));
      button.style.setProperty("--colour", colourOf(shown, one));
      button.addEventListener("click", () => {
        if (one.elsewhere) return keep(shown, one.layer, one.head);
        if (!hidden.delete(one.head)) hidden.add(one.head);
        toggled();
      });
      return button;
    });
    const all = (text, change) => {
      const button = make("button", { type: "button" }, text);
      button.addEventListener("click", () => (shown.overlaid.forEach(change), toggled()));
      return button;
    };
    const both = make("span", { class: "ways" }, all("All", ({ head }) => hidden.delete(head)), all("None", ({ head, elsewhere }) => elsewhere || hidden.add(head)));
    const name = heads[shown.state].join(".");
    const kept = make("button", { type: "button", class: "keep", "aria-pressed": String(added.has(name)) }, `Keep ${name}`);
    kept.addEventListener("click", () => keep(shown, ...heads[shown.state]));
    return make("div", { class: "overlay" }, make("div", { class: "chips", role: "group", "aria-label": "Heads that are shown" }, ...buttons), both, make("span", { class: "ways" }, kept));
  }

  function toggled() {
    for (const { place, overlaid } of panels.filter((one) => one.weights)) place.querySelectorAll(".chips button").forEach((button, i) => button.setAttribute("aria-pressed", String(isOn(overlaid[i]))));
    rest();
  }

  // A head is shown with whatever layer is, or no longer.
  function keep(from, layer, head) {
    const name = `${layer}.${head}`;
    if (!added.delete(name)) added.add(name);
    for (const shown of panels) showHead(shown);
    from.place.querySelector(".keep").focus();
    rest();
  }

  // The query of a token, all keys, and their products, as strips of a cell for each dimension.
  function showScores(shown, title) {
    const { own, queries, keys, parts } = shown;
    if (!parts) {
      const kept = (own.scores ?? []).flatMap(({ layer, heads }) => heads.map((head) => `${layer}.${head}`));
      const which = kept.length ? `It has those of ${kept.length > 12 ? `${kept.length} heads, from ${kept[0]} to ${kept.at(-1)}` : kept.join(", ")}.` : "They are kept of the first sentences, as long as they are small.";
      shown.weights = null;
      shown.place.replaceChildren(title, make("p", { class: "remark" }, `This page has no queries and keys of this head for this sentence. ${which} headlens attend keeps those of the heads chosen by --layer, --head or --heads.`));
      return;
    }
    const strip = (kind) => make("canvas", { class: kind, "aria-hidden": "true" }); // what it shows is told in words
    const cells = () => [strip("key"), strip("product"), ...["score", ...(rests ? ["rest"] : []), "weight"].map((name) => make("span", { class: name, title: name }))];
    const rests = hasRest(parts);
    shown.lists = { queries: list("queries", queries.labels, "Attending tokens"), keys: list("keys", keys.labels, "Attended tokens", cells) };
    shown.strip = strip("query");
    shown.asked = make("span", { class: "label" });
    const headings = ["", "keys", "query × keys", "score", ...(rests ? ["rest"] : []), "weight"].map((text) => make("span", {}, text));
    const grid = make("div", { class: `look scores ${rests ? "with-rest" : ""}` }, shown.lists.queries, make("div", { class: "row" }, shown.asked, shown.strip, make("span", { class: "largest" })), make("div", { class: "row headings", "aria-hidden": "true" }, ...headings), shown.lists.keys);
    [shown.key, shown.dimension] = [-1, -1];
    shown.words = make("ul");
    const words = make("details", { class: "words" }, make("summary", {}, "In words"), shown.words);
    shown.place.replaceChildren(title, make("p", { class: "about" }, aboutScores(parts, own.heads)), make("div", {}, grid), shown.told, words);
    listen(shown, grid);
    const across = (event) => {
      const canvas = event.target.closest("canvas");
      const box = canvas?.getBoundingClientRect();
      const at = canvas ? Math.max(0, Math.min(parts.d - 1, Math.floor(((event.clientX - box.left) / box.width) * parts.d))) : -1;
      const row = canvas?.closest("li");
      if (canvas) tell(shown, "keys", row ? [...shown.lists.keys.children].indexOf(row) : -1, at);
    };
    grid.addEventListener("pointermove", across);
    grid.addEventListener("pointerdown", across);
  }

  function tellScores(shown, side, number, dimension) {
    const { own, queries, keys, parts } = shown;
    if (side === "queries") asked = number;
    if (asked < 0 || asked >= queries.count) asked = Math.max(0, queries.special.indexOf(false));
    // Of the same query, only the lines that are pointed at change.
    const lines = shown.asking === asked ? [shown.key, side === "keys" ? number : -1] : null;
    shown.key = side === "keys" ? number : -1;
    shown.dimension = dimension ?? -1;
    if (!lines) [shown.asking, shown.row] = [asked, scored(parts, asked)];
    const [from, weights] = [queries.labels[asked], shown.row.keys.map((one) => one.weight)];
    const top = shown.key < 0 ? weights.indexOf(Math.max(...weights)) : shown.key;
    const sink = shown.row.sum < 0.999 ? `; ${percent(1 - shown.row.sum)} goes to no token, as with a learned sink` : "";
    const told = [`${quoted(from)} gives ${most(keys.labels, (k) => weights[k], (label, share) => `${share} to ${quoted(label)}`)}${sink}.`, inWords(parts, shown.row, top, from, keys.labels[top])];
    if (shown.dimension >= 0) told.unshift(ofDimension(shown.row, shown.dimension, shown.key, from, keys.labels[shown.key]));
    shown.told.replaceChildren(...told.map((line) => make("p", {}, line)));
    if (!lines) shown.words.replaceChildren(...keys.labels.map((to, k) => make("li", {}, inWords(parts, shown.row, k, from, to))));
    mark(shown, "queries", () => 0, asked);
    mark(shown, "keys", () => 0, shown.key);
    drawScores(shown, lines);
  }

  function drawScores(shown, only = null) {
    const { row, lists, place } = shown;
    const largest = (numbers) => Math.max(...numbers.map((own) => Math.max(...own.map(Math.abs))));
    const most = { query: largest([row.query]), key: largest(row.keys.map((one) => one.key)), product: largest(row.keys.map((one) => one.products)) };
    const colours = [shade(), shade("--bad")];
    const ink = shade("--ink");
    // All strips of a kind are of one size, which is asked for once: drawing makes the browser lay out again.
    const sizes = Object.fromEntries(Object.keys(most).map((kind) => [kind, place.querySelector(`canvas.${kind}`)]).map(([kind, { clientWidth, clientHeight }]) => [kind, [clientWidth, clientHeight]]));
    const strip = (canvas, numbers, kind, marked) => drawStrip(canvas, sizes[kind], numbers, most[kind], colours, marked ? shown.dimension : -1, ink);
    shown.asked.textContent = shown.asked.title = `query ${quoted(shown.queries.labels[asked])}`;
    place.querySelector(".largest").textContent = `strongest: query ${decimal(most.query)}, keys ${decimal(most.key)}, products ${decimal(most.product)}`;
    strip(shown.strip, row.query, "query", true);
    [...lists.keys.children].forEach((line, k) => {
      if (only && !only.includes(k)) return;
      const { key, products, score, rest, weight } = row.keys[k];
      strip(line.querySelector(".key"), key, "key", k === shown.key);
      strip(line.querySelector(".product"), products, "product", k === shown.key);
      const masked = rest === -Infinity;
      line.querySelector(".score").textContent = decimal(score);
      line.querySelector(".rest")?.replaceChildren(masked ? "–" : decimal(rest));
      line.querySelector(".weight").textContent = masked ? "–" : percent(weight);
      line.querySelector(".weight").style.setProperty("--weight", weight);
      line.classList.toggle("masked", masked);
    });
  }

  function listen(shown, grid) {
    const placed = (event) => {
      const button = event.target.closest("[data-token]");
      return button && [button.closest(".side").classList.contains("queries") ? "queries" : "keys", Number(button.dataset.token)];
    };
    grid.addEventListener("pointerover", (event) => {
      const at = event.pointerType === "touch" ? null : placed(event);
      if (at) tell(shown, ...at);
    });
    grid.addEventListener("pointerleave", rest);
    grid.addEventListener("focusin", (event) => {
      const at = placed(event);
      if (!at) return;
      for (const other of shown.lists[at[0]].querySelectorAll("button")) other.tabIndex = other === event.target ? 0 : -1;
      tell(shown, ...at);
    });
    grid.addEventListener("focusout", rest);
    grid.addEventListener("click", (event) => {
      const at = placed(event);
      if (!at) return;
      if (shown.parts && at[0] === "keys") return event.target.focus(); // the query stays chosen
      const again = pinned?.join() === [shown.state, ...at].join();
      pinned = again ? null : [shown.state, ...at];
      const button = event.target.closest("[data-token]");
      if (again) button.blur();
      else button.focus();
      rest();
    });
    grid.addEventListener("keydown", (event) => {
      const at = placed(event);
      if (!at) return;
      const [side, number] = at;
      const last = shown[side].count - 1;
      const lying = { matrix: "keys", scores: "queries" }[chosen.look] === side;
      const [onwards, back] = lying ? ["ArrowRight", "ArrowLeft"] : ["ArrowDown", "ArrowUp"];
      const moves = { [onwards]: number + 1, [back]: number - 1, Home: 0, End: last };
      const over = { queries: [lying ? "ArrowDown" : "ArrowRight"], keys: [lying ? "ArrowDown" : "ArrowLeft"] }[side];
      const step = shown.parts && side === "keys" ? { ArrowLeft: -1, ArrowRight: 1 }[event.key] : 0;
      if (event.key === "Escape") {
        pinned = null;
        shown.place.parentElement.querySelector("td[tabindex='0']").focus();
      } else if (step && shown.dimension + step >= -1) tell(shown, side, number, Math.min(shown.parts.d - 1, shown.dimension + step));
      else if (event.key in moves) shown.lists[side].querySelectorAll("button")[Math.max(0, Math.min(last, moves[event.key]))]?.focus();
      else if (over.includes(event.key)) shown.lists[side === "queries" ? "keys" : "queries"].querySelector("button[tabindex='0']")?.focus();
      else return;
      event.preventDefault();
    });
  }

  function pointAtCells(shown) {
    shown.canvas.addEventListener("pointermove", (event) => {
      if (chosen.look !== "matrix") return;
      const box = shown.canvas.getBoundingClientRect();
      const at = (share, count) => Math.max(0, Math.min(count - 1, Math.floor(share * count)));
      const [q, k] = [at((event.clientY - box.top) / box.height, shown.queries.count), at((event.clientX - box.left) / box.width, shown.keys.count)];
      tell(shown, "queries", q, k);
    });
  }

  // What is told of a token is told of it in every state that has the same tokens.
  function tell(from, side, number, key = null) {
    const labels = (shown) => [...shown.queries.labels, "", ...shown.keys.labels].join("\n");
    for (const shown of panels.filter((one) => one.weights && (one === from || labels(one) === labels(from)))) {
      if (shown.parts) {
        tellScores(shown, side, number, key);
        continue;
      }
      const { queries, keys, weights } = shown;
      const alike = queries.labels.join("\n") === keys.labels.join("\n"); // one text looks at itself
      const lines = side === "queries" ? [gives(shown, number, chosen), ...(alike ? [gets(shown, number)] : [])] : [gets(shown, number), ...(alike ? [gives(shown, number, chosen)] : [])];
      if (chosen.look === "layer" && side === "queries") {
        const most = (weights) => Array.from({ length: keys.count }, (_, k) => k).reduce((best, k) => (weights[number * keys.count + k] > weights[number * keys.count + best] ? k : best), 0);
        const each = shown.overlaid.filter(isOn).map((one) => [one.elsewhere ? `${one.layer}.${one.head}` : one.head, keys.labels[most(one.weights)], one.weights[number * keys.count + most(one.weights)]]);
        lines.push(`Most of each head: ${each.map(([name, label, weight]) => `${name} ${quoted(label)} ${percent(weight)}`).join(", ")}.`);
      }
      if (key !== null) lines.unshift(`${quoted(queries.labels[number])} gives ${percent(weights[number * keys.count + key])} to ${quoted(keys.labels[key])}.`);
      shown.told.replaceChildren(...lines.map((line) => make("p", {}, line)));
      mark(shown, "queries", (q) => (side === "keys" ? weights[q * keys.count + number] : 0), side === "queries" ? number : -1);
      mark(shown, "keys", (k) => (side === "queries" ? weights[number * keys.count + k] : 0), side === "keys" ? number : key ?? -1);
      shown.looking = [side, number];
      draw(shown);
    }
  }

  function mark(shown, side, weightOf, looking) {
    shown.lists[side].querySelectorAll("button").forEach((button, i) => {
      button.style.setProperty("--weight", Math.sqrt(Math.min(1, weightOf(i))));
      button.classList.toggle("looking", i === looking);
    });
  }

  // Nothing is pointed at: what a click kept, or what the keys are at, or else the whole head.
  function rest() {
    remember();
    const kept = pinned && panels.find((shown) => shown.state === pinned[0]);
    if (kept?.weights && pinned[2] < kept[pinned[1]].count) return tell(kept, pinned[1], pinned[2]);
    const focused = document.activeElement?.closest("[data-token]");
    const near = focused && panels.find((shown) => shown.weights && shown.place.contains(focused));
    if (near) return tell(near, focused.closest(".side").classList.contains("queries") ? "queries" : "keys", Number(focused.dataset.token));
    for (const shown of panels.filter((one) => one.weights)) {
      if (shown.parts) {
        tellScores(shown, null, -1);
        continue;
      }
      shown.told.replaceChildren(make("p", { class: "about" }, "Point at a token, or move there with the arrow keys, to see what it attends to and which tokens attend to it; a click keeps it selected."));
      for (const side of ["queries", "keys"]) mark(shown, side, () => 0, -1);
      shown.looking = [null, -1];
      draw(shown);
    }
  }

  function draw(shown) {
    if (shown.parts) return drawScores(shown);
    const { canvas, queries, keys, weights, looking: [side, number] } = shown;
    const [width, height] = [canvas.clientWidth, canvas.clientHeight];
    const size = Math.min(devicePixelRatio || 1, 16000 / Math.max(1, width, height)); // browsers draw no larger picture
    [canvas.width, canvas.height] = [width * size, height * size];
    const context = canvas.getContext("2d");
    context.scale(size, size);
    context.fillStyle = context.strokeStyle = `rgb(${shade().join(",")})`;
    if (chosen.look === "layer") {
      for (const one of shown.overlaid.filter(isOn)) {
        context.strokeStyle = colourOf(shown, one);
        context.setLineDash(one.elsewhere ? [5, 3] : []);
        drawLines(shown, context, one.weights, width);
      }
      return;
    }
    if (chosen.look === "lines") return drawLines(shown, context, weights, width);
    const [high, wide] = [height / queries.count, width / keys.count];
    for (let q = 0; q < queries.count; q++)
      for (let k = 0; k < keys.count; k++) {
        const weight = Math.min(1, weights[q * keys.count + k]);
        const meant = side === null || number === (side === "queries" ? q : k);
        context.globalAlpha = Math.sqrt(weight) * (meant ? 1 : 0.3);
        if (weight) context.fillRect(k * wide, q * high, wide, high);
      }
  }

  function drawLines(shown, context, weights, width) {
    const { queries, keys, looking: [side, number] } = shown;
    for (let q = 0; q < queries.count; q++)
      for (let k = 0; k < keys.count; k++) {
        const weight = Math.min(1, weights[q * keys.count + k]);
        if (weight < 0.004 || (side !== null && number !== (side === "queries" ? q : k))) continue;
        context.globalAlpha = weight;
        context.lineWidth = 1 + 2 * weight;
        context.beginPath();
        context.moveTo(0, (q + 0.5) * rowOf(shown));
        context.lineTo(width, (k + 0.5) * rowOf(shown));
        context.stroke();
      }
  }

  const rowOf = (shown) => (shown.lists.queries.firstElementChild ?? shown.canvas).offsetHeight;

  // With a server behind the page, sentences that are typed are measured.
  function form() {
    const { limit, translated } = data.measuring;
    const field = (text) => make("textarea", { rows: 2, maxlength: limit, "aria-label": text, placeholder: text });
    const fields = [field("A sentence"), ...(translated ? [field("Its translation, for the decoder (may be empty)")] : [])];
    const problem = make("p", { class: "bad", role: "alert" });
    const button = make("button", { type: "submit" }, "Look");
    const made = make("form", {}, ...fields, button, problem);
    made.addEventListener("submit", async (event) => {
      event.preventDefault();
      [button.disabled, problem.textContent] = [true, ""];
      try {
        const [text, translation = ""] = fields.map((one) => one.value);
        const answer = await fetch("measure", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ text, translation }) });
        const result = await answer.json();
        if (result.error) problem.textContent = result.error;
        else {
          data.sentences.push(...result.sentences);
          if (result.sentences.length) set("sentence", data.sentences.length - 1);
          else problem.textContent = "This sentence has too many weights to show.";
        }
      } catch {
        problem.textContent = "headlens serve does not answer: is it still running?";
      }
      button.disabled = false;
    });
    for (const one of fields) one.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey) (event.preventDefault(), made.requestSubmit());
    });
    return made;
  }

  root.append(...(data.measuring ? [form()] : []), bar, about, states);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => data.sentences.length && paint());
  new ResizeObserver(() => panels.filter((one) => one.weights).forEach((shown) => draw(shown))).observe(root);
  if (!data.sentences.length) about.textContent = data.measuring ? "No sentence yet: type one." : tellLeftOut("");
  else {
    recall();
    controls();
    paint();
    if (alone) addEventListener("hashchange", () => (recall(), controls(), paint()));
  }
});
