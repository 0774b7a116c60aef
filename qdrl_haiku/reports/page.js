"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const config = {
  displaylogo: false,
  modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
  responsive: true,
};

// What `repertoire.encoded` wrote.
function decoded({dtype, bytes}) {
  const raw = Uint8Array.from(atob(bytes), (c) => c.charCodeAt(0));
  return new (dtype === "<f4" ? Float32Array : Int32Array)(raw.buffer);
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

function drawRepertoire(element) {
  const repertoire = data.repertoires[element.dataset.repertoire];
  const {rows, columns, x, y} = repertoire.image;
  const image = decoded(repertoire.image.cells);
  const fitness = decoded(repertoire.fitness);
  const named = (items) =>
    items.map(({name, values}) => [name, decoded(values)]);
  const descriptors = named(repertoire.descriptors);
  const hyperparams = named(repertoire.hyperparams);
  const finders = repertoire.finders;
  const foundBy = finders && decoded(finders.found_by);
  const again = repertoire.again;
  const seenAgain = again && [
    ["episode return", again.fitness],
    ...again.descriptors.map((x, i) => [repertoire.descriptors[i].name, x]),
  ].map(([name, {mean, spread}]) => [name, decoded(mean), decoded(spread)]);
  const [map, way] = [".map", ".way"].map((c) => element.querySelector(c));
  // Else they would grow into free room when the window changes.
  map.style.height = `${repertoire.layout.height}px`;
  if (repertoire.ways) way.style.height = `${repertoire.ways.layout.height}px`;
  const input = element.querySelector("input");
  const table = element.querySelector("table");
  const elites = new Map();
  decoded(repertoire.cells).forEach((cell, elite) => elites.set(cell, elite));

  const ways = repertoire.ways;
  const numbers = ways && Object.fromEntries(
    Object.entries(ways.columns).map(([name, x]) => [name, decoded(x)]));
  const rollouts = new Map(
    numbers ? Array.from(numbers.cells, (cell, i) => [cell, i]) : []);

  function showWay(cell) {
    const i = rollouts.get(cell);
    way.hidden = i === undefined;
    if (way.hidden) return;
    const of = (name, from, to) => Array.from(numbers[name].slice(from, to));
    const ends = [i ? numbers.ends[i - 1] : 0, numbers.ends[i]];
    const [x, y] = [of("x", ...ends), of("y", ...ends)];
    const traces = [...ways.traces,
      {x, y, mode: "lines", name: "way", line: {color: "#0072b2", width: 2}},
      {
        x: x.slice(-1), y: y.slice(-1), mode: "markers", name: "end",
        marker: {color: "#d55e00", size: 9}, cliponaxis: false,
      }];
    if (ways.num_stick_ends) {
      const sticks = [i, i + 1].map((n) => n * ways.num_stick_ends);
      // Two ends and a gap.
      const pairs = (values) => values.flatMap(
        (value, end) => end % 2 ? [value, null] : [value]);
      traces.push({
        x: pairs(of("stick_x", ...sticks)), y: pairs(of("stick_y", ...sticks)),
        xaxis: "x2", yaxis: "y2", mode: "lines", hoverinfo: "skip",
        line: {color: "#222222", width: 3}, showlegend: false,
        cliponaxis: false,
      });
    }
    Plotly.react(way, traces, ways.layout, config);
  }

  function select(cell) {
    input.value = cell;
    const elite = elites.get(cell);
    const isEmpty = elite === undefined;
    const of = ([name, values]) => [name, shown(values[elite])];
    showTable(table, isEmpty ? [["cell", `${cell} is empty`]] : [
      ["cell", `${cell} of ${repertoire.num_cells}`],
      ["episode return", shown(fitness[elite])],
      ...descriptors.map(of),
      ...(again ? seenAgain.map(([name, mean, spread]) => [
        `${name}, ${again.num_episodes} times again`,
        `${shown(mean[elite])} ± ${shown(spread[elite])}`,
      ]) : []),
      ...hyperparams.map(of),
      ...(finders
        ? [["found by", finders.names.at(foundBy[elite])]] : []),
      ...(ways ? [["return of the episode below", rollouts.has(cell)
        ? shown(numbers.returns[rollouts.get(cell)]) : "none; see --rollouts",
      ]] : []),
    ]);
    showWay(cell);
    const at = isEmpty ? [] : [descriptors[0][1][elite]];
    const across = descriptors.length > 1 ? descriptors[1][1][elite] : 0.5;
    Plotly.restyle(map, {x: [at], y: [isEmpty ? [] : [across]]}, [1]);
  }

  const z = Array.from({length: rows}, (_, row) => Array.from(
    image.subarray(row * columns, (row + 1) * columns),
    (cell) => elites.has(cell) ? fitness[elites.get(cell)] : null));
  const [dx, dy] = [(x[1] - x[0]) / columns, (y[1] - y[0]) / rows];
  const drawn = Plotly.newPlot(map, [
    {
      type: "heatmap", z, dx, dy, x0: x[0] + dx / 2, y0: y[0] + dy / 2,
      colorscale: "Viridis", hoverongaps: true,
      colorbar: {title: {text: "episode return", side: "right"}},
      hovertemplate: "(%{x:.3g}, %{y:.3g})<br>return %{z:.4g}<extra></extra>",
    },
    {
      type: "scatter", mode: "markers", x: [], y: [], hoverinfo: "skip",
      cliponaxis: false,
      marker: {
        symbol: "circle-open", size: 14, color: "#d55e00", line: {width: 3},
      },
    },
    // Two cells clicked one after the other are no double click.
  ], repertoire.layout, {...config, doubleClick: false});
  map.on("plotly_click", ({points: [{pointNumber: [row, column]}]}) => {
    const cell = image[row * columns + column];
    if (cell >= 0) select(cell);
  });
  input.addEventListener("change", () => {
    if (input.checkValidity() && input.value) select(Number(input.value));
  });
  let best = 0;
  fitness.forEach((value, elite) => { if (value > fitness[best]) best = elite; });
  if (fitness.length) drawn.then(() => select([...elites.keys()][best]));
}

function draw(element) {
  if (element.dataset.repertoire) {
    drawRepertoire(element);
  } else {
    const figure = data.figures[element.dataset.figure];
    Plotly.newPlot(element, figure.data, figure.layout, config);
  }
}

// Of many runs there are many figures; those far away can wait.
const observer = new IntersectionObserver((entries) => {
  for (const {isIntersecting, target} of entries) {
    if (isIntersecting) {
      observer.unobserve(target);
      draw(target);
    }
  }
}, {rootMargin: "1000px"});
document.querySelectorAll(".plot, .repertoire")
  .forEach((element) => observer.observe(element));
