// Sorting and filtering of tables; without this script the page is complete, only not sortable.
(() => {
  const compareText = new Intl.Collator("en", { numeric: true }).compare;
  const compareNumbers = (a, b) => (a < b ? -1 : a > b ? 1 : 0);

  function keyOf(cell, numeric) {
    const text = (cell.dataset.v ?? cell.textContent).trim();
    return text === "" ? null : numeric ? Number(text) : text;
  }

  function sort(table, column) {
    const headers = [...table.tHead.rows[0].cells];
    const header = headers[column];
    const numeric = header.classList.contains("n");
    const ascending = header.getAttribute("aria-sort") !== "ascending";
    const compare = numeric ? compareNumbers : compareText;
    const rows = [...table.tBodies[0].rows].map((row) => [keyOf(row.cells[column], numeric), row]);
    // empty cells stay last in both directions; equal ones keep their order
    rows.sort(([a], [b]) =>
      a === null || b === null ? (a === null) - (b === null) : ascending ? compare(a, b) : compare(b, a),
    );
    table.tBodies[0].append(...rows.map(([, row]) => row));
    for (const other of headers) other.setAttribute("aria-sort", "none");
    header.setAttribute("aria-sort", ascending ? "ascending" : "descending");
  }

  // What is the same in every row stands above the table: names of columns and their cells.
  const sameOf = (table, what) => [...table.closest("details").querySelectorAll(`.same ${what}`)];

  function filter(table, words, output) {
    let shown = 0;
    const same = sameOf(table, "bdi");
    for (const row of table.tBodies[0].rows) {
      const text = [...same, ...row.cells].map((cell) => cell.textContent).join(" ").toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
      shown += row.hidden ? 0 : 1;
    }
    output.textContent = words.length ? `${shown} of ${table.tBodies[0].rows.length} rows` : "";
  }

  // The rows that are shown, in their order; numbers with all the digits that the page has.
  function save(table, title) {
    // As headlens writes CSV: no spreadsheet runs text as a formula.
    const safe = (text) =>
      /^'*[=+\-@\t\r\n][^]/.test(text) && !/^[-+]?(\d+\.?\d*|\.\d+|Infinity)(e[-+]?\d+)?$/i.test(text) ? `'${text}` : text;
    const quoted = (text) => (/[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
    const heads = [...sameOf(table, "b"), ...table.tHead.rows[0].cells].map((cell) => cell.textContent);
    const same = sameOf(table, "bdi").map((cell) => cell.dataset.v || cell.textContent);
    const rows = [...table.tBodies[0].rows].filter((row) => !row.hidden);
    const value = (cell) => (cell.classList.contains("n") && cell.dataset.v) || cell.textContent;
    const lines = [heads, ...rows.map((row) => [...same, ...[...row.cells].map(value)])];
    const text = lines.map((cells) => cells.map(safe).map(quoted).join(",")).join("\n") + "\n";
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
    link.download = `${title.replace(/\.csv\b/, "").replace(/[^\w.-]+/g, "-").replace(/^-+|-+$/g, "").toLowerCase() || "table"}.csv`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  }

  for (const table of document.querySelectorAll("table.sortable")) {
    [...table.tHead.rows[0].cells].forEach((header, column) => {
      header.querySelector("button").addEventListener("click", () => sort(table, column));
    });
    const tools = table.closest("details").querySelector(".tools");
    const input = tools.querySelector("input");
    const output = tools.querySelector("output");
    tools.hidden = false;
    tools.querySelector(".filter").hidden = table.tBodies[0].rows.length < 6;
    const title = table.closest("details").querySelector("summary").firstElementChild.textContent;
    tools.querySelector(".save").addEventListener("click", () => save(table, title));
    input.addEventListener("input", () => {
      filter(table, input.value.toLowerCase().split(/\s+/).filter(Boolean), output);
    });
  }
})();
