// What the scripts of the console use of each element, whatever its kind: elements of a kind that has it.
interface Element {
  focus(options?: FocusOptions): void;
  click(): void;
  cellIndex: number;
}
interface Node {
  data: string;
  attributes: NamedNodeMap;
}
