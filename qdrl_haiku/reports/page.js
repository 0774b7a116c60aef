"use strict";

const config = {
  displaylogo: false,
  modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
  responsive: true,
};

// What `with_plotly.encoded` wrote.
function decoded({dtype, bdata}) {
  const raw = Uint8Array.from(atob(bdata), (c) => c.charCodeAt(0));
  return new (dtype === "f4" ? Float32Array : Int32Array)(raw.buffer);
}

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

// Returns what shows the episode of a cell, and its return as text.
function rolloutsOf(way, data) {
  if (!data) return () => [];
  const {figure} = data;
  const [cells, returns] = [decoded(data.cells), decoded(data.returns)];
  const paths = data.paths.map((path) => ["x", "y", "ends"].map(
    (name) => decoded(path[name])));
  const places = new Map(Array.from(cells, (cell, i) => [cell, i]));
  drawFigure(way, figure);
  return (cell) => {
    const i = places.get(cell);
    way.hidden = i === undefined;
    if (!way.hidden) {
      paths.forEach(([x, y, ends], k) => {
        const piece = [i ? ends[i - 1] : 0, ends[i]];
        figure.data[k].x = Array.from(x.slice(...piece));
        figure.data[k].y = Array.from(y.slice(...piece));
      });
      Plotly.react(way, figure.data, figure.layout, config);
    }
    return [["return of the episode below",
      way.hidden ? "none; see --rollouts" : shown(returns[i])]];
  };
}

function drawElites(element, data) {
  const [map, way, input, table] = [".map", ".way", "input", "table"].map(
    (name) => element.querySelector(name));
  const image = decoded(data.image);
  const position = data.position.map(decoded);
  const cells = decoded(data.cells);
  const elites = new Map(Array.from(cells, (cell, elite) => [cell, elite]));
  const columns = data.columns.map(({name, texts, values, spread}) => {
    if (texts) return (elite) => [name, texts[elite]];
    const numbers = [values, spread].filter(Boolean).map(decoded);
    return (elite) => [name, numbers.map((x) => shown(x[elite])).join(" ± ")];
  });
  const showRollout = rolloutsOf(way, data.rollouts);

  function select(cell) {
    input.value = cell;
    const elite = elites.get(cell);
    const isEmpty = elite === undefined;
    const rollout = showRollout(cell);
    showTable(table, isEmpty ? [["cell", `${cell} is empty`]] : [
      ["cell", `${cell} of ${data.num_cells}`],
      ...columns.map((column) => column(elite)),
      ...rollout,
    ]);
    const [x, y] = position.map((values) => isEmpty ? [] : [values[elite]]);
    Plotly.restyle(map, {x: [x], y: [y]}, [1]);
  }

  // Two cells clicked one after the other are no double click.
  const drawn = drawFigure(map, data.figure, {doubleClick: false});
  map.on("plotly_click", ({points: [{pointNumber: [row, column]}]}) => {
    const cell = image[row * data.width + column];
    if (cell >= 0) select(cell);
  });
  input.addEventListener("change", () => {
    if (input.checkValidity() && input.value) select(Number(input.value));
  });
  if (data.best !== null) drawn.then(() => select(cells[data.best]));
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
