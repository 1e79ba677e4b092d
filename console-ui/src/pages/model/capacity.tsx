// How much the caches hold and how much more fits.

import type { ModelDetail } from "../../api/types";
import { compact, count, percent } from "../../format";
import { texts } from "../../i18n";
import { Card, Meter, Note } from "../../ui/basics";

export function capacityTokens(model: ModelDetail): number | null {
  const known = model.routing.replicas.map((row) => row.kv_cache_tokens);
  return known.length && known.every((tokens) => tokens !== null) ? known.reduce<number>((sum, tokens) => sum + (tokens ?? 0), 0) : null;
}

export function CapacityCard(props: { model: ModelDetail }) {
  const words = texts.value.model;
  const { model } = props;
  const held = model.held_tokens ?? model.routing.replicas.reduce((sum, row) => sum + row.resident_tokens, 0);
  const capacity = capacityTokens(model);
  const ratio = capacity ? held / capacity : null;
  return (
    <Card title={words.capacity} class="capacity-card">
      <Meter
        wide
        ratio={ratio}
        text={ratio === null ? words.heldOnly(compact(held)) : `${percent(ratio)}: ${words.heldOf(compact(held), compact(capacity))}`}
        label={words.capacity}
      />
      {ratio !== null && ratio > 1 && <Note tone="warning">{model.routing.admission.engaged ? words.fullHeld : words.full}</Note>}
      <p class="room">
        {model.room_for === null || model.room_for === undefined ? words.roomUnknown : words.roomFor(count(model.room_for))}{" "}
        {model.mean_context_tokens ? words.meanContext(compact(model.mean_context_tokens)) : ""}
      </p>
    </Card>
  );
}
