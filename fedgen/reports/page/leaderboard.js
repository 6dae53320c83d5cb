// Tables whose columns sort: by numbers where a column has numbers, else by texts; what has no value stands last.

function valueOf(row, place) {
  const cell = row.cells[place], given = cell.dataset.sort;
  if (given === undefined) return cell.textContent;
  return given === "" ? null : Number(given);
}

function compared(a, b) {
  if (a === null || b === null) return (a === null) - (b === null);
  return typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en");
}

function sortBy(table, place, down) {
  const body = table.tBodies[0], rows = [...body.rows];
  rows.sort((one, other) => {
    const [a, b] = [valueOf(one, place), valueOf(other, place)];
    return a === null || b === null || !down ? compared(a, b) : compared(b, a);
  });
  body.append(...rows);
  [...table.tHead.rows[0].cells].forEach((head, k) => {
    if (k === place) head.setAttribute("aria-sort", down ? "descending" : "ascending");
    else head.removeAttribute("aria-sort");
  });
}

for (const table of document.querySelectorAll("table.sortable")) {
  [...table.tHead.rows[0].cells].forEach((head, place) => {
    head.querySelector("button").addEventListener("click", () => sortBy(table, place, head.getAttribute("aria-sort") === "ascending"));
  });
}
startTheme();
document.documentElement.dataset.ready = "";
