// What an operator may change of the routing while the model runs. Each control applies at once.

import { mayChange } from "../../api/client";
import type { ModelDetail } from "../../api/types";
import { texts } from "../../i18n";
import { Button, Card, Segmented } from "../../ui/basics";
import { NumberField } from "../../ui/number-field";
import { patchRouting } from "./commands";

const MOST_THRESHOLD = 1_000_000;

export function SettingsForm(props: { model: ModelDetail }) {
  const words = texts.value.model;
  const { name, routing } = props.model;
  const locked = !mayChange();
  const set = (values: Record<string, unknown>): void => void patchRouting(name, values);
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
        least={0}
        most={MOST_THRESHOLD}
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
