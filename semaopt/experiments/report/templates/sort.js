"use strict";
// A button in a table head sorts the rows by the number that a cell starts with, or by its text; again to reverse.
function key(cell) {
  const text = cell.textContent.trim();
  const found = text.match(/^(?:\u00d7 )?([-+]?\d+(\.\d+)?(e[-+]?\d+)?)/i);
  return found ? Number(found[1]) : text === "diverged" ? Infinity : text;
}
function order(a, b) {
  if (typeof a === typeof b) return a < b ? -1 : a > b ? 1 : 0;
  return typeof a === "number" ? -1 : 1;
}
document.addEventListener("click", function (event) {
  const button = event.target.closest("th button");
  if (!button) return;
  const head = button.parentElement, body = head.closest("table").tBodies[0];
  const up = head.getAttribute("aria-sort") !== "ascending";
  for (const other of head.parentElement.children) other.setAttribute("aria-sort", "none");
  head.setAttribute("aria-sort", up ? "ascending" : "descending");
  const rows = Array.from(body.rows), column = head.cellIndex;
  rows.sort((a, b) => (up ? 1 : -1) * order(key(a.cells[column]), key(b.cells[column])));
  body.append(...rows);
});
