// What weights are made of: a query, keys, their products dimension by dimension, scores, and the softmax of scores.
const attentionScores = (() => {
  "use strict";
  const { percent, quoted } = attentionWeights;
  const NAMED = 3; // dimensions that are told of a key

  const decimal = (x) => x.toFixed(Math.abs(x) >= 99.95 ? 0 : Math.abs(x) >= 9.995 ? 1 : 2).replace(/^-(0\.00)?/, (_, zero) => zero ?? "−");
  const signed = (x) => (x > 0 ? "+" : "") + decimal(x);

  // The parts of a head's scores and its place among them; null where the page has none.
  function partsOf(own, layer, head) {
    const parts = own.scores?.find((one) => one.layer === layer && one.heads.includes(head));
    return parts ? { ...parts, place: parts.heads.indexOf(head), count: own.queries.length, length: own.keys.length } : null;
  }

  // The weights of a query, made of their parts as a model makes them.
  function scored(parts, q) {
    const { d, place, count, length, scaling } = parts;
    const row = place * count + q;
    const query = parts.queries.subarray(row * d, (row + 1) * d);
    const keys = Array.from({ length }, (_, k) => {
      const key = parts.keys.subarray((place * length + k) * d, (place * length + k + 1) * d);
      const products = Float64Array.from(query, (x, i) => x * key[i]);
      const sum = products.reduce((a, b) => a + b, 0);
      const rest = parts.rest[row * length + k];
      return { key, products, sum, rest, score: scaling * sum };
    });
    const highest = Math.max(...keys.map((own) => own.score + own.rest));
    const raised = keys.map((own) => (highest > -Infinity ? Math.exp(own.score + own.rest - highest) : 0));
    const total = raised.reduce((a, b) => a + b, 0) || 1;
    keys.forEach((own, k) => (own.weight = (parts.sums[row] * raised[k]) / total));
    return { query, keys, sum: parts.sums[row] };
  }

  const headOf = (parts, numbers) => numbers.subarray(parts.place * parts.count * parts.length, (parts.place + 1) * parts.count * parts.length);
  const hasRest = (parts) => headOf(parts, parts.rest).some((rest) => rest !== 0 && rest > -Infinity);
  const hasMask = (parts) => headOf(parts, parts.rest).some((rest) => rest === -Infinity);

  // What has to be known of a head before its scores are read.
  function about(parts, heads) {
    const { d, scaling, shared_by, off, place } = parts;
    const head = parts.heads[place];
    const group = Array.from({ length: heads }, (_, other) => other).filter((other) => other !== head && Math.floor(other / shared_by) === Math.floor(head / shared_by));
    const factor = scaling === 1 ? "" : `${Number(scaling.toPrecision(4))} times `;
    const sink = parts.sums.subarray(place * parts.count, (place + 1) * parts.count).some((sum) => sum < 1) ? ", beside that of a sink, which is no token" : "";
    const away = off[place] < 1e-4 ? off[place].toExponential(0) : off[place].toFixed(4);
    return [
      `A score is ${factor}the sum of the ${d} products of a query and a key. Weights are the softmax of scores${hasRest(parts) ? " and rest" : ""}${sink}; they differ from the model's own by ${away} at most.`,
      group.length ? ` This head shares its keys with ${group.length === 1 ? "head" : "heads"} ${group.join(", ")}.` : "",
      hasRest(parts) ? " In this head, the products alone do not give the weights: position biases, a cap on scores, a penalty or another function than softmax take part. The rest is what has to be added to a score for the model's weight, up to a constant for each query: it is 0 for the key that gains most." : "",
      hasMask(parts) ? " A key without a weight is masked, gets none from a function such as entmax, or too little for the model's numbers." : "",
    ].join("");
  }

  function inWords(parts, { keys }, k, from, to) {
    const { sum, score, rest, weight, products } = keys[k];
    const order = [...products.keys()].sort((a, b) => Math.abs(products[b]) - Math.abs(products[a]));
    const largest = order.slice(0, NAMED).map((i) => `${i} (${signed(products[i])})`);
    const more = rest && rest > -Infinity ? `, rest ${decimal(rest)}` : "";
    return `${quoted(from)} and ${quoted(to)}: ${decimal(sum)} × ${Number(parts.scaling.toPrecision(4))} = ${decimal(score)}${more}, weight ${rest === -Infinity ? "0 %" : percent(weight)}; largest products: dimensions ${largest.join(", ")}.`;
  }

  function ofDimension({ query, keys }, i, k, from, to) {
    if (k < 0) return `Dimension ${i} of ${quoted(from)}: ${decimal(query[i])}.`;
    return `Dimension ${i}: ${decimal(query[i])} of ${quoted(from)} × ${decimal(keys[k].key[i])} of ${quoted(to)} = ${decimal(keys[k].products[i])}.`;
  }

  // Numbers as shades of two colours side by side, the largest of all strips the strongest.
  function drawStrip(canvas, [width, height], numbers, largest, [above, below], marked, ink) {
    const size = devicePixelRatio || 1;
    [canvas.width, canvas.height] = [width * size, height * size];
    const context = canvas.getContext("2d");
    context.scale(size, size);
    const step = width / numbers.length;
    numbers.forEach((number, i) => {
      context.globalAlpha = largest ? Math.sqrt(Math.abs(number) / largest) : 0;
      context.fillStyle = `rgb(${(number > 0 ? above : below).join(",")})`;
      context.fillRect(i * step, 1, step, height - 2);
    });
    if (marked < 0) return;
    context.globalAlpha = 1;
    context.strokeStyle = `rgb(${ink.join(",")})`;
    context.strokeRect(marked * step - 1, 0.5, step + 2, height - 1);
  }

  return { partsOf, scored, hasRest, about, inWords, ofDimension, drawStrip, decimal };
})();
