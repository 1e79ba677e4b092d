// Where a request's time went, as one bar. Bars beside each other have one scale, so that they can be compared.

import type { Turn } from "../api/types";
import { seconds } from "../format";
import { texts } from "../i18n";
import { parts } from "../logic/timing";

type Timed = Pick<Turn, "waited_s" | "first_byte_s" | "duration_s" | "streamed">;

export function timeWords(turn: Timed): string {
  const words = texts.value.conversation.timing;
  return parts(turn)
    .map((part) => `${words[part.name]} ${seconds(part.seconds)}`)
    .join(" · ");
}

export function TimeBar(props: { turn: Timed; longestS: number }) {
  const { turn } = props;
  const shown = parts(turn).filter((part) => part.seconds > 0);
  const share = (value: number): string => `${(value / Math.max(props.longestS, 1e-9)) * 100}%`;
  return (
    <span class="bar" role="img" aria-label={timeWords(turn)}>
      {shown.map((part) => (
        <span key={part.name} class={part.name} style={{ width: share(part.seconds) }} />
      ))}
    </span>
  );
}
