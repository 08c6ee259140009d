for (const box of document.querySelectorAll(".command")) {
  const button = box.querySelector("button"), text = box.querySelector("pre");
  button.hidden = false;
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text.textContent);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(text);
      button.textContent = "Selected";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
}
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  const key = (row, column) => row.cells[column].dataset.sort ?? row.cells[column].textContent;
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const sign = head.ariaSort === "ascending" ? -1 : 1;
      heads.forEach((other) => { other.ariaSort = null; });
      head.ariaSort = sign > 0 ? "ascending" : "descending";
      const compare = (a, b) => {
        const [x, y] = [key(a, column), key(b, column)];
        if (x === "" || y === "") return (x === "") - (y === "");
        const numbers = [parseFloat(x), parseFloat(y)];
        const order = numbers.some(Number.isNaN) ? x.localeCompare(y) : numbers[0] - numbers[1];
        return sign * order;
      };
      body.append(...[...body.rows].sort(compare));
    });
  });
  for (const hint of document.querySelectorAll(".sorting")) hint.hidden = false;
}
