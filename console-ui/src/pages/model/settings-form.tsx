// What an operator may change while the model runs. Each control applies at once.

import { useState } from "preact/hooks";
import { mayChange } from "../../api/client";
import type { ModelDetail } from "../../api/types";
import { texts } from "../../i18n";
import { Button, Card, Segmented } from "../../ui/basics";
import { patchRouting } from "./commands";

const MOST_THRESHOLD = 1_000_000;

export function SettingsForm(props: { model: ModelDetail }) {
  const words = texts.value.model;
  const { name, routing } = props.model;
  const locked = !mayChange();
  const set = (values: Record<string, unknown>): void => void patchRouting(name, values);
  const { admission } = routing;
  const placements = (["least-loaded", "hash"] as const).map((value) => ({ value, label: words.placementChoice[value] }));
  return (
    <Card title={words.settings} class="settings-card">
      {locked && <p class="hint">{texts.value.common.readOnly}</p>}
      <Threshold name={name} value={routing.spill_threshold} isSet={routing.spill_threshold_source === "set"} locked={locked} />
      <Segmented
        showLabel
        label={words.placement}
        value={routing.placement === "hash" ? "hash" : "least-loaded"}
        options={placements}
        onChange={(placement) => set({ placement })}
        disabled={locked}
      />
      {admission.max_wait_s !== undefined && (
        <>
          <Segmented
            showLabel
            label={words.admission}
            value={admission.mode === "off" ? "off" : "auto"}
            options={(["auto", "off"] as const).map((value) => ({ value, label: words.admissionChoice[value] }))}
            onChange={(mode) => set({ admission: mode })}
            disabled={locked}
          />
          {admission.prefer !== undefined && (
            <Segmented
              showLabel
              label={words.prefer}
              value={admission.prefer}
              options={(["balanced", "median", "tail"] as const).map((value) => ({
                value: value as string,
                label: words.preferChoice[value],
              }))}
              onChange={(prefer) => set({ prefer })}
              disabled={locked}
            />
          )}
          <NumberField label={words.maxWait} value={admission.max_wait_s} locked={locked} onApply={(max_wait_s) => set({ max_wait_s })} />
        </>
      )}
      <p class="hint">{words.settingsHint}</p>
    </Card>
  );
}

function Threshold(props: { name: string; value: number; isSet: boolean; locked: boolean }) {
  const words = texts.value.model;
  return (
    <div class="setting">
      <NumberField
        label={words.thresholdLabel}
        value={props.value}
        locked={props.locked}
        onApply={(spill_threshold) => void patchRouting(props.name, { spill_threshold })}
      >
        <Button
          onClick={() => void patchRouting(props.name, { spill_threshold: null })}
          disabled={props.locked || !props.isSet}
          pressed={!props.isSet}
        >
          {words.thresholdAuto}
        </Button>
      </NumberField>
      <p class="hint">{words.thresholdHint}</p>
    </div>
  );
}

// Shows the value in force until somebody types; then what is typed, until it is applied or left empty.
function NumberField(props: {
  label: string;
  value: number;
  locked: boolean;
  onApply: (value: number) => void;
  children?: preact.ComponentChildren;
}) {
  const [draft, setDraft] = useState<string | null>(null);
  const typed = draft === null ? props.value : Number(draft);
  const valid = draft !== null && draft.trim() !== "" && Number.isInteger(typed) && typed >= 0 && typed <= MOST_THRESHOLD;
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
          min={0}
          max={MOST_THRESHOLD}
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
