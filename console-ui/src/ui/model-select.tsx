// Which model a page is about: kept in the address, so that a link shows the same.

import { snapshot } from "../live";
import { texts } from "../i18n";
import { route, setQuery } from "../route";
import { Select } from "./basics";

export function modelNames(): string[] {
  return snapshot.value?.models.map((model) => model.name) ?? [];
}

// "" stands for all models, where a page can show them together.
export function chosenModel(allowAll: boolean): string {
  const chosen = route.value.query.get("model") ?? "";
  if (chosen || allowAll) return chosen;
  return modelNames()[0] ?? "";
}

// The replicas to choose from: the chosen model's, or those of all.
export function chosenReplicas(): string[] {
  const model = chosenModel(true);
  const served = snapshot.value?.models ?? [];
  return served.filter((one) => !model || one.name === model).flatMap((one) => one.routing.replicas.map((row) => row.replica));
}

export function ModelSelect(props: { allowAll?: boolean; onChange?: () => void }) {
  const names = modelNames();
  const value = chosenModel(props.allowAll ?? false);
  if (names.length < 2 && !(value && !names.includes(value))) return null;
  const words = texts.value.common;
  const options = [
    ...(props.allowAll ? [{ value: "", label: words.all }] : []),
    ...[...new Set([...names, ...(value ? [value] : [])])].map((name) => ({ value: name, label: name })),
  ];
  return (
    <Select label={words.model} value={value} options={options} onChange={(name) => setQuery({ model: name || null, replica: null })} />
  );
}
