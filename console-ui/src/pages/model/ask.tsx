// The question before a drain or a restart, with the way out for the last ready replica.

import { useState } from "preact/hooks";
import type { ReplicaRow } from "../../api/types";
import { texts } from "../../i18n";
import { Note } from "../../ui/basics";
import { Confirm } from "../../ui/dialog";

export interface Question {
  title: string;
  text: string;
  action: string;
  // It would leave no replica ready, so it must be allowed here.
  outage: boolean;
  then: (allowOutage: boolean) => void;
}

export function leavesNone(replicas: readonly ReplicaRow[], isTaken: (row: ReplicaRow) => boolean): boolean {
  const ready = replicas.filter((row) => row.state === "ready");
  return ready.length > 0 && ready.every(isTaken);
}

export function Ask(props: { question: Question; onClose: () => void }) {
  const [allow, setAllow] = useState(false);
  const { question } = props;
  return (
    <Confirm
      title={question.title}
      text={question.text}
      action={question.action}
      onClose={props.onClose}
      onConfirm={() => question.then(allow)}
      disabled={question.outage && !allow}
      extra={
        <>
          {question.outage && <Note tone="warning">{texts.value.model.lastReady}</Note>}
          <label class="check">
            <input type="checkbox" checked={allow} onChange={(event) => setAllow(event.currentTarget.checked)} />{" "}
            {texts.value.model.allowOutage}
          </label>
        </>
      }
    />
  );
}
