// Weights of attention: out of the bytes of the page, between tokens or words, as small pictures and in words.
const attentionWeights = (() => {
  "use strict";
  const LEAST = 0.02; // of a token's attention must be left to be scaled: roundings would be scaled as well
  const THUMBNAIL = 64; // pixels at most; of longer sentences a pixel stands for the largest of several weights

  // Bytes hold square roots; they are unpacked when they are first shown, once.
  const WEIGHTS = Float32Array.from({ length: 256 }, (_, byte) => (byte / 255) ** 2);
  async function inflate(text) {
    const packed = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Response(stream).arrayBuffer();
  }
  async function inflateAll(own) {
    for (const parts of own.scores ?? [])
      for (const name of ["queries", "keys", "rest", "sums"]) parts[name] = new Float32Array(await inflate(parts[name]));
    own.bytes = new Uint8Array(await inflate(own.weights));
  }
  const unpack = (own) => (own.unpacked ??= inflateAll(own));

  const isMissing = (own, layer, head) => own.missing.some(([l, h]) => l === layer && h === head);
  const percent = (weight) => `${(100 * weight).toFixed(weight >= 0.0995 || weight === 0 ? 0 : 1)} %`;
  const quoted = (token) => `“${token}”`;

  // The units of a side: their labels, the tokens of each, and whether they are shown; of a pair those of one text.
  function unitsOf(tokens, groups, chosen, text = null) {
    const words = chosen.units === "words" && groups;
    const labels = words ? groups.forms : tokens;
    const unit = words ? groups.words : tokens.map((_, i) => i);
    const pieces = labels.map(() => 0);
    unit.forEach((u) => pieces[u]++);
    const special = labels.map(() => false);
    if (groups) unit.forEach((u, i) => (special[u] ||= groups.special[i]));
    const texts = labels.map(() => text);
    if (text !== null) unit.forEach((u, i) => (texts[u] = groups.texts[i]));
    const shown = labels.map((_, u) => (chosen.special === "shown" || !special[u]) && texts[u] === text);
    let count = 0;
    const place = shown.map((is) => (is ? count++ : -1)); // where a unit is shown
    const kept = (values) => values.filter((_, u) => shown[u]);
    return { labels: kept(labels), special: kept(special), numbers: kept(labels.map((_, u) => u)), unit, pieces, place, count, whole: count === labels.length };
  }

  // What a map shows of a head: weights (query, key), and of each query what it gives to tokens that are left out.
  function look({ own, queries, keys }, layer, head, chosen) {
    const weights = new Float32Array(queries.count * keys.count);
    const lost = new Float32Array(queries.count);
    const [m, n] = [own.queries.length, own.keys.length];
    const start = (layer * own.heads + head) * m * n;
    for (let q = 0; q < m; q++) {
      const row = queries.place[queries.unit[q]];
      if (row < 0) continue;
      const share = 1 / queries.pieces[queries.unit[q]];
      for (let k = 0; k < n; k++) {
        const weight = WEIGHTS[own.bytes[start + q * n + k]] * share;
        const column = keys.place[keys.unit[k]];
        if (column < 0) lost[row] += weight;
        else weights[row * keys.count + column] += weight;
      }
    }
    if (chosen.special === "scaled")
      for (let q = 0; q < queries.count; q++) {
        const row = weights.subarray(q * keys.count, (q + 1) * keys.count);
        const sum = row.reduce((a, b) => a + b, 0);
        const enough = lost[q] <= 1 - LEAST;
        row.forEach((weight, k) => (row[k] = enough && sum ? weight / sum : 0));
      }
    return { weights, lost };
  }

  function thumbnail(canvas, weights, [rows, columns], [r, g, b]) {
    const step = Math.max(1, Math.ceil(Math.max(rows, columns) / THUMBNAIL));
    [canvas.width, canvas.height] = [Math.max(1, Math.ceil(columns / step)), Math.max(1, Math.ceil(rows / step))];
    const context = canvas.getContext("2d");
    const image = context.createImageData(canvas.width, canvas.height);
    for (let i = 0; i < weights.length; i++) {
      const at = 4 * (Math.floor(Math.floor(i / columns) / step) * canvas.width + Math.floor((i % columns) / step));
      const alpha = Math.round(255 * Math.sqrt(Math.min(1, weights[i])));
      if (alpha > image.data[at + 3]) image.data.set([r, g, b, alpha], at);
    }
    context.putImageData(image, 0, 0);
  }

  // The head that is shown first: tokens give most to one other token, special ones and themselves left out.
  function telling(shown, chosen) {
    const { own, queries, keys } = shown;
    const alike = own.stack !== "cross";
    let best = [-1, 0, 0];
    for (let layer = 0; layer < own.layers; layer++)
      for (let head = 0; head < own.heads; head++) {
        if (isMissing(own, layer, head)) continue;
        const { weights } = look(shown, layer, head, chosen);
        let sum = 0;
        for (let q = 0; q < queries.count; q++) {
          let most = 0;
          for (let k = 0; k < keys.count; k++)
            if (!queries.special[q] && !keys.special[k] && !(alike && queries.numbers[q] === keys.numbers[k])) most = Math.max(most, weights[q * keys.count + k]);
          sum += most;
        }
        if (sum > best[0]) best = [sum, layer, head];
      }
    return best.slice(1);
  }

  // The largest of what a token gives or gets, in words.
  function most(labels, weightOf, text) {
    const order = labels.map((_, i) => i).sort((a, b) => weightOf(b) - weightOf(a));
    return order.slice(0, 5).filter((i, rank) => weightOf(i) >= 0.01 || !rank).map((i) => text(labels[i], percent(weightOf(i)))).join(", ");
  }

  function gives(shown, q, chosen) {
    const { queries, keys, weights, lost } = shown;
    const note = keys.whole ? "" : `; ${percent(lost[q])} goes to tokens that are left out`;
    if (chosen.special === "scaled" && lost[q] > 1 - LEAST) return `${quoted(queries.labels[q])} gives ${percent(lost[q])} to tokens that are left out: too little is left to rescale.`;
    return `${quoted(queries.labels[q])} gives ${most(keys.labels, (k) => weights[q * keys.count + k], (label, share) => `${share} to ${quoted(label)}`) || "nothing"}${note}.`;
  }

  function gets(shown, k) {
    const { queries, keys, weights } = shown;
    return `${quoted(keys.labels[k])} gets ${most(queries.labels, (q) => weights[q * keys.count + k], (label, share) => `${share} from ${quoted(label)}`) || "nothing"}.`;
  }

  return { unpack, isMissing, percent, quoted, unitsOf, look, thumbnail, telling, most, gives, gets };
})();
