// HyperFormula (GPL-3.0, installed by who runs the benchmark) behind a pipe: a line of JSON in, one out; numbers by file.
// Many edits are one batch. Without undo, which makes each batch slower than the last, and without rounding of results.
const { HyperFormula, AlwaysDense } = require("hyperformula");
const fs = require("node:fs");
const path = require("node:path");
const readline = require("node:readline");

const place = (name) => path.join(process.argv[2], name);
const read = (name) => {
  const bytes = fs.readFileSync(place(name));
  return new Float64Array(bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length));
};
const formulas = fs.readFileSync(place("formulas"), "utf8").split("\n");
const held = read("held");
let engine;

const set = (row, value) => engine.setCellContents({ sheet: 0, row, col: 0 }, value);

const answers = {
  build() {
    const sheet = Array.from({ length: Math.max(held.length, formulas.length) }, (_, row) => [
      row < held.length ? held[row] : null,
      row < formulas.length ? formulas[row] : null,
    ]);
    engine = HyperFormula.buildFromArray(sheet, {
      licenseKey: "gpl-v3",
      smartRounding: false,
      undoLimit: 0,
      maxRows: 1048576,
      chooseAddressMappingPolicy: new AlwaysDense(),
    });
    return { version: HyperFormula.version };
  },
  apply({ pieces }) {
    const values = read("edit");
    let next = 0;
    const edits = pieces.map(([row, count]) => {
      const some = Array.from(values.subarray(next, (next += count)));
      return [row, count > 1 ? some.map((value) => [value]) : some[0]];
    });
    const started = performance.now();
    if (edits.length === 1) set(...edits[0]);
    else engine.batch(() => edits.forEach((edit) => set(...edit)));
    return { ms: performance.now() - started };
  },
  values() {
    const rows = engine.getSheetValues(0);
    const all = new Float64Array(held.length + formulas.length);
    for (let at = 0; at < held.length; at++) all[at] = rows[at][0];
    for (let at = 0; at < formulas.length; at++) all[held.length + at] = rows[at][1];
    fs.writeFileSync(place("values"), new Uint8Array(all.buffer));
    return {};
  },
};

readline.createInterface({ input: process.stdin }).on("line", (line) => {
  const question = JSON.parse(line);
  fs.writeSync(1, JSON.stringify(answers[question.do](question)) + "\n");
});
