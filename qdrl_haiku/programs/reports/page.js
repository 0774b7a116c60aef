"use strict";

const config = {
  displaylogo: false,
  modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
  responsive: true,
};

function shown(number) {
  return Number.isFinite(number)
    ? String(Number(number.toPrecision(6))) : "not finite";
}

function showTable(table, rows) {
  table.replaceChildren(...rows.map(([name, value]) => {
    const row = document.createElement("tr");
    const head = row.appendChild(document.createElement("th"));
    head.scope = "row";
    head.textContent = name;
    row.insertCell().textContent = value;
    return row;
  }));
}

function drawFigure(element, figure, more) {
  // Else it would grow into free room when the window changes.
  element.style.height = `${figure.layout.height}px`;
  return Plotly.newPlot(
    element, figure.data, figure.layout, {...config, ...more});
}

// Returns a function that draws the episode of a cell, and returns its return.
function rolloutsOf(way, {figure, episodes} = {}) {
  if (!figure) return () => [];
  const found = new Map(episodes.map(([cell, ...rest]) => [cell, rest]));
  drawFigure(way, figure);
  return (cell) => {
    const [value, paths] = found.get(cell) ?? [];
    way.hidden = !paths;
    if (paths) {
      paths.forEach(([x, y], k) => Object.assign(figure.data[k], {x, y}));
      Plotly.react(way, figure.data, figure.layout, config);
    }
    return [["return of the episode below",
      paths ? shown(value) : "none; see --rollouts"]];
  };
}

function drawElites(element, data) {
  const [map, way, front, input, table] = [
    ".map", ".way", ".front", "input", "table",
  ].map((name) => element.querySelector(name));
  const elites = new Map(data.cells.map((cell, elite) => [cell, elite]));
  const showRollout = rolloutsOf(way, data.rollouts);

  function select(cell) {
    input.value = cell;
    const elite = elites.get(cell);
    const isEmpty = elite === undefined;
    const rollout = showRollout(cell);
    showTable(table, isEmpty ? [["cell", `${cell} is empty`]] : [
      ["cell", `${cell} of ${data.num_cells}`],
      ...data.columns.map(({name, texts, values, spread}) => [
        name, texts ? texts[elite] : [values, spread].filter(Boolean)
          .map((numbers) => shown(numbers[elite])).join(" ± "),
      ]),
      ...rollout,
    ]);
    const [x, y] = data.position.map((of) => isEmpty ? [] : [of[elite]]);
    Plotly.restyle(map, {x: [x], y: [y]}, [1]);
    if (data.fronts && !isEmpty) {
      // The front of the elite's cell, on those of all others.
      const [u, v] = data.objectives.map((of) => of.filter(
        (_, i) => data.front_of[i] === data.front_of[elite]));
      Plotly.restyle(front, {x: [u], y: [v]}, [2]);
    }
  }

  // Two cells clicked one after the other are no double click.
  const drawn = drawFigure(map, data.figure, {doubleClick: false});
  if (data.fronts) {
    drawFigure(front, data.fronts, {doubleClick: false});
    front.on("plotly_click", ({points: [{curveNumber, pointNumber}]}) => {
      if (curveNumber === 0) select(data.cells[pointNumber]);
    });
  }
  map.on("plotly_click", ({points: [{pointNumber: [row, column]}]}) => {
    const cell = data.image[row][column];
    if (cell >= 0) select(cell);
  });
  input.addEventListener("change", () => {
    if (input.checkValidity() && input.value) select(Number(input.value));
  });
  if (data.best !== null) drawn.then(() => select(data.cells[data.best]));
}

// Of many runs there are many figures; those far away can wait.
const observer = new IntersectionObserver((entries) => {
  for (const {isIntersecting, target} of entries) {
    if (isIntersecting) {
      observer.unobserve(target);
      const script = target.parentElement.querySelector("script");
      const data = JSON.parse(script.textContent);
      const isPlot = target.className === "plot";
      (isPlot ? drawFigure : drawElites)(target, data);
    }
  }
}, {rootMargin: "1000px"});
document.querySelectorAll(".plot, .repertoire")
  .forEach((element) => observer.observe(element));
