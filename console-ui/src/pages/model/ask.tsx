// The question before a drain or a restart, with the way out for the last ready replica.

import { useState } from "preact/hooks";
import { texts } from "../../i18n";
import { Confirm } from "../../ui/dialog";

export interface Question {
  title: string;
  text: string;
  action: string;
  then: (allowOutage: boolean) => void;
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
      extra={
        <label class="check">
          <input type="checkbox" checked={allow} onChange={(event) => setAllow(event.currentTarget.checked)} />{" "}
          {texts.value.model.allowOutage}
        </label>
      }
    />
  );
}
