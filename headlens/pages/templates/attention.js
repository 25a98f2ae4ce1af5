// Attention on sentences, head by head and token by token. All it shows is in the page, see attention_page.py.
document.querySelectorAll(".attention-view").forEach((root) => {
  "use strict";
  const { unpack, isMissing, percent, quoted, unitsOf, look, thumbnail, telling, gives, gets } = attentionWeights;
  const data = JSON.parse(root.querySelector("template").content.textContent);
  const LOOKS = { lines: "Lines", layer: "Whole layer", matrix: "Matrix" };
  const UNITS = { tokens: "Subwords", words: "Words" };
  const SPECIAL = { shown: "shown", out: "left out", scaled: "left out, the rest rescaled to 100 %" };
  const chosen = { sentence: 0, stack: "", look: "lines", units: "tokens", special: "shown" };
  const heads = data.states.map(() => null); // layer and head of each state
  const hidden = new Set(); // heads that are switched off where a whole layer is shown, by their numbers
  const panels = []; // what is shown of each state
  let pinned = null; // [state, side, number] of the token that a click keeps
  let pass = 0; // of two paintings under way only the later one is shown

  function make(name, attributes = {}, ...children) {
    const element = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.append(...children);
    return element;
  }

  // A page of its own keeps what is shown in its address, so that a copied address shows the same.
  const alone = "measuring" in data;

  function remember() {
    if (!alone) return;
    const shown = heads.map((head) => (head ? head.join(".") : "")).join(",");
    const parts = new URLSearchParams({ ...chosen, heads: shown, token: pinned ? pinned.join(".") : "" });
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
    for (const [name, known] of [["look", Object.keys(LOOKS)], ["units", Object.keys(UNITS)], ["special", Object.keys(SPECIAL)], ["stack", stacks()]])
      if (known.includes(given.get(name))) chosen[name] = given.get(name);
    (given.get("heads") ?? "").split(",").slice(0, heads.length).forEach((text, state) => {
      const numbers = text.split(".").map(whole);
      if (numbers.length === 2 && !numbers.includes(null)) heads[state] = numbers;
    });
    const [state, side, number] = (given.get("token") ?? "").split(".");
    if (whole(state) < heads.length && ["queries", "keys"].includes(side) && whole(number) !== null) pinned = [whole(state), side, whole(number)];
  }

  const sentence = () => data.sentences[chosen.sentence];
  const stacks = () => [...new Set(sentence().maps.map((own) => own.stack))];
  const mapOf = (state) => sentence().maps.find((own) => own.state === state && own.stack === chosen.stack);
  // The colour of the page for all weights, in its light or dark form.
  function accent() {
    const hex = getComputedStyle(document.documentElement).getPropertyValue("--accent").trim();
    return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
  }

  function picker(text, entries, value, change, kind = "") {
    const box = make("select", {}, ...entries.map(([key, label]) => make("option", { value: key }, label)));
    box.value = value;
    box.addEventListener("change", () => change(box.value));
    const label = make("label", { class: kind }, `${text} `, box);
    label.hidden = entries.length < 2;
    return label;
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
    return make("span", { class: "ways", role: "group", "aria-label": text }, ...buttons);
  }

  function set(name, value) {
    chosen[name] = value;
    pinned = null;
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
    bar.replaceChildren(
      picker("Sentence", data.sentences.map((one, i) => [i, one.text]), chosen.sentence, (i) => set("sentence", Number(i)), "sentence"),
      picker("Attention of", stacks().map((stack) => [stack, stack === "cross" ? "decoder to encoder (cross)" : stack]), chosen.stack, (stack) => set("stack", stack)),
      ways("How attention is shown", LOOKS, "look"),
      ...(pieces ? [ways("Parts of the sentence", UNITS, "units")] : []),
      ...(special ? [picker("Special tokens", Object.entries(SPECIAL), chosen.special, (how) => set("special", how))] : []),
    );
  }

  function tellLeftOut(more) {
    const [what, they] = data.left_out === 1 ? ["sentence is", "it"] : ["sentences are", "they"];
    return `${data.left_out}${more} ${what} left out because ${they} would make this page too large.`;
  }

  function tellAbout() {
    const lines = "Tokens on the left attend to tokens on the right; the strength of a line shows the attention weight";
    const how = { lines: `${lines}.`, layer: `${lines}, its colour the head. Words and numbers are of the head that is chosen.`, matrix: "Tokens at the side attend to tokens along the top." }[chosen.look];
    const shades = make("i", { class: "scale", role: "img", "aria-label": "from pale to strong" });
    const units = chosen.units === "words" ? " Weights to the subwords of a word are summed; weights from them are averaged." : "";
    const special = { shown: "", out: " Special tokens are left out; the other weights are unchanged.", scaled: " Special tokens are left out, and the weight of each token on the remaining ones is rescaled to 100 %; where less than 2 % remains, the row is left empty." }[chosen.special];
    const gone = data.left_out ? ` ${tellLeftOut(" more")}` : "";
    about.replaceChildren(`${how}${units}${special} Shades darken with the square root of the weight, 0 % `, shades, ` 100 %. Square roots of weights are rounded to 1/255, so a weight is off by at most 0.4 percentage points, and a small one by less.${gone}`);
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
    const [queries, keys] = [unitsOf(own.queries, own.query_groups, chosen), unitsOf(own.keys, own.key_groups, chosen)];
    const shown = { own, state, queries, keys, place: make("div") };
    panels.push(shown);
    // Of one model the states begin with the same head.
    heads[state] ??= (data.linked && heads.find(Boolean)) || telling(shown, chosen);
    heads[state] = heads[state].map((number, i) => Math.min(number, [own.layers, own.heads][i] - 1));
    box.append(watch(make("div", { class: "scroll" }, thumbnails(shown))), shown.place);
    showHead(shown);
    return box;
  }

  // Layer 0 is at the bottom, as in all figures.
  function thumbnails(shown) {
    const { own, state, queries, keys } = shown;
    const ink = accent();
    const cell = (layer, head) => {
      const name = `${own.stack}.${layer}.${head}`;
      const is = heads[state][0] === layer && heads[state][1] === head;
      const made = make("td", { role: "gridcell", tabindex: is ? "0" : "-1", "data-head": `${layer} ${head}`, "aria-selected": String(is), title: name });
      if (isMissing(own, layer, head)) {
        made.classList.add("removed");
        made.setAttribute("aria-label", `${name}, removed`);
        return made;
      }
      const { weights } = look(shown, layer, head, chosen);
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
    Object.assign(shown, look(shown, layer, head, chosen));
    const present = Array.from({ length: own.heads }, (_, other) => other).filter((other) => !isMissing(own, layer, other));
    shown.overlaid = chosen.look === "layer" ? present.map((other) => [other, look(shown, layer, other, chosen).weights]) : [];
    const list = (side, labels, text) => {
      const button = (label, i) => make("button", { type: "button", tabindex: i ? "-1" : "0", "data-token": i, title: label }, label);
      return make("ul", { class: `side ${side}`, "aria-label": text }, ...labels.map((label, i) => make("li", {}, button(label, i))));
    };
    shown.lists = { queries: list("queries", queries.labels, "Attending tokens"), keys: list("keys", keys.labels, "Attended tokens") };
    shown.canvas = make("canvas", { role: "img", "aria-label": "The same as an image" });
    const grid = make("div", { class: `look ${chosen.look === "matrix" ? "matrix" : "lines"}` }, shown.lists.queries, shown.canvas, shown.lists.keys);
    shown.looking = [null, -1]; // the side and the number of the token that is pointed at
    shown.told = make("div", { class: "told", role: "status" });
    const lines = queries.labels.map((_, q) => make("li", {}, gives(shown, q, chosen)));
    const words = make("details", { class: "words" }, make("summary", {}, "In words"), make("ul", {}, ...lines));
    shown.place.replaceChildren(title, ...(shown.overlaid.length ? [chips(shown)] : []), watch(make("div", { class: "scroll" }, grid)), shown.told, words);
    listen(shown, grid);
  }

  const colourOf = (shown, head) => `hsl(${Math.round((360 * head) / shown.own.heads)} 75% ${matchMedia("(prefers-color-scheme: dark)").matches ? 65 : 42}%)`;

  // A button in its colour for each head of the layer, which switches its lines off and on; of one model in all states.
  function chips(shown) {
    const buttons = shown.overlaid.map(([head]) => {
      const button = make("button", { type: "button", "aria-pressed": String(!hidden.has(head)) }, String(head));
      button.style.setProperty("--colour", colourOf(shown, head));
      button.addEventListener("click", () => {
        if (!hidden.delete(head)) hidden.add(head);
        for (const other of root.querySelectorAll(".chips button")) other.setAttribute("aria-pressed", String(!hidden.has(Number(other.textContent))));
        for (const one of panels.filter((panel) => panel.weights)) draw(one);
      });
      return button;
    });
    return make("div", { class: "chips", role: "group", "aria-label": "Heads of the layer that are shown" }, ...buttons);
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
      const [onwards, back] = chosen.look === "matrix" && side === "keys" ? ["ArrowRight", "ArrowLeft"] : ["ArrowDown", "ArrowUp"];
      const moves = { [onwards]: number + 1, [back]: number - 1, Home: 0, End: last };
      const over = { queries: ["ArrowRight"], keys: chosen.look === "matrix" ? ["ArrowDown"] : ["ArrowLeft"] }[side];
      if (event.key === "Escape") {
        pinned = null;
        shown.place.parentElement.querySelector("td[tabindex='0']").focus();
      } else if (event.key in moves) shown.lists[side].querySelectorAll("button")[Math.max(0, Math.min(last, moves[event.key]))]?.focus();
      else if (over.includes(event.key)) shown.lists[side === "queries" ? "keys" : "queries"].querySelector("button[tabindex='0']")?.focus();
      else return;
      event.preventDefault();
    });
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
      const { queries, keys, weights } = shown;
      const alike = queries.labels.join("\n") === keys.labels.join("\n"); // one text looks at itself
      const lines = side === "queries" ? [gives(shown, number, chosen), ...(alike ? [gets(shown, number)] : [])] : [gets(shown, number), ...(alike ? [gives(shown, number, chosen)] : [])];
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
      shown.told.replaceChildren(make("p", { class: "about" }, "Point at a token, or move there with the arrow keys, to see what it attends to and which tokens attend to it; a click keeps it selected."));
      for (const side of ["queries", "keys"]) mark(shown, side, () => 0, -1);
      shown.looking = [null, -1];
      draw(shown);
    }
  }

  function draw(shown) {
    const { canvas, queries, keys, weights, looking: [side, number] } = shown;
    const [width, height] = [canvas.clientWidth, canvas.clientHeight];
    const size = Math.min(devicePixelRatio || 1, 16000 / Math.max(1, width, height)); // browsers draw no larger picture
    [canvas.width, canvas.height] = [width * size, height * size];
    const context = canvas.getContext("2d");
    context.scale(size, size);
    context.fillStyle = context.strokeStyle = `rgb(${accent().join(",")})`;
    if (chosen.look === "layer") {
      for (const [head, layer] of shown.overlaid) {
        if (hidden.has(head)) continue;
        context.strokeStyle = colourOf(shown, head);
        drawLines(shown, context, layer, width);
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
  }
});
