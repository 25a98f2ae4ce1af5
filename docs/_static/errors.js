// Shows the rows of the errors whose message is the one that was pasted, or holds it. `…` in a row stands for anything.
"use strict";
const plain = (text) => text.replace(/[\s"'‘’“”]+/g, " ").trim().toLowerCase();
const pieces = (message) => plain(message).split(/…|\(s\)/).map((part) => part.trim()).filter((part) => part.length > 2);

function matches(message, pasted) {
  if (plain(message).includes(pasted)) return true;
  let from = 0;
  const parts = pieces(message.replace(/^FILE(:LINE)?: /, ""));
  return parts.join("").length > 8 && parts.every((part) => {
    const at = pasted.indexOf(part, from);
    from = at + part.length;
    return at >= 0;
  });
}

const rows = [...document.querySelectorAll("article table tbody tr")].filter((row) => !row.closest("table").tHead.textContent.includes("wrong"));
document.getElementById("message").addEventListener("input", (event) => {
  const pasted = plain(event.target.value);
  let shown = 0;
  for (const row of rows) {
    row.hidden = pasted !== "" && !matches(row.cells[0].textContent, pasted);
    shown += row.hidden ? 0 : 1;
  }
  for (const section of document.querySelectorAll("article section section")) {
    const own = rows.filter((row) => section.contains(row));
    section.hidden = own.length > 0 && own.every((row) => row.hidden);
  }
  document.getElementById("matches").textContent = pasted === "" ? "" : `${shown} of ${rows.length} messages`;
});
