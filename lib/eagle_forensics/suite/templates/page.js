"use strict";
// A filter box above every table with a body; a link to a folded card opens it; printing unfolds the cards.
for (const table of document.querySelectorAll("table.dataframe")) {
  if (!table.tBodies.length || table.tBodies[0].rows.length < 2) continue;
  const box = document.createElement("input");
  box.type = "search";
  box.className = "filter";
  box.placeholder = "Filter rows";
  const caption = table.caption ? table.caption.textContent : "table";
  box.setAttribute("aria-label", "Filter rows of: " + caption);
  box.addEventListener("input", () => {
    const words = box.value.toLowerCase().split(/\s+/);
    for (const row of table.tBodies[0].rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
    }
  });
  if (table.caption) table.caption.append(box); else table.before(box);
}
for (const region of document.querySelectorAll(".ef-table, pre")) {
  if (region.scrollWidth > region.clientWidth) region.tabIndex = 0;
}
function unfold() {
  const target = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (target) for (let node = target; node; node = node.parentElement) if (node.tagName === "DETAILS") node.open = true;
}
addEventListener("hashchange", unfold);
unfold();
addEventListener("beforeprint", () => {
  for (const card of document.querySelectorAll("details.ef-finding")) card.open = true;
});
for (const head of document.querySelectorAll("table.sortable thead th")) {
  const button = document.createElement("button");
  button.type = "button";
  button.append(...head.childNodes);
  head.append(button);
  button.addEventListener("click", () => {
    const up = head.getAttribute("aria-sort") !== "ascending";
    for (const other of head.parentNode.cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const body = head.closest("table").tBodies[0];
    const key = (row) => { const cell = row.cells[head.cellIndex]; return cell.dataset.sort ?? cell.textContent.trim(); };
    const rows = [...body.rows].sort((a, b) => key(a).localeCompare(key(b), "en", { numeric: true }) * (up ? 1 : -1));
    body.append(...rows);
  });
}
