// A whole number that is applied at once.

import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { texts } from "../i18n";
import { Button } from "./basics";

// Shows the value in force until somebody types; then what is typed, until it is applied or left empty.
export function NumberField(props: {
  label: string;
  value: number;
  least: number;
  most: number;
  locked: boolean;
  onApply: (value: number) => void;
  children?: ComponentChildren;
}) {
  const [draft, setDraft] = useState<string | null>(null);
  const typed = draft === null ? props.value : Number(draft);
  const valid = draft !== null && draft.trim() !== "" && Number.isInteger(typed) && typed >= props.least && typed <= props.most;
  const apply = (event: Event): void => {
    event.preventDefault();
    if (!valid) return;
    props.onApply(typed);
    setDraft(null);
  };
  return (
    <form class="number-field" onSubmit={apply}>
      <label class="field">
        <span class="field-label">{props.label}</span>
        <input
          type="number"
          min={props.least}
          max={props.most}
          step={1}
          inputMode="numeric"
          disabled={props.locked}
          value={draft ?? String(props.value)}
          onInput={(event) => setDraft(event.currentTarget.value)}
        />
      </label>
      <Button type="submit" kind="primary" disabled={props.locked || !valid || typed === props.value}>
        {texts.value.common.apply}
      </Button>
      {props.children}
    </form>
  );
}
