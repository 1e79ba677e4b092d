// What can be done to a model. Each command answers with a new state, which is shown at once.

import { change } from "../../api/client";
import type { Routing } from "../../api/types";
import { texts } from "../../i18n";
import { replaceRouting } from "../../live";
import { run } from "../../ui/dialog";

const pathOf = (model: string): string => `/api/models/${model.split("/").map(encodeURIComponent).join("/")}`;

export async function patchRouting(model: string, values: Record<string, unknown>): Promise<boolean> {
  return run(
    async () => replaceRouting(model, await change<Routing>("PATCH", `${pathOf(model)}/routing`, values)),
    texts.value.model.applied,
  );
}

export async function drain(model: string, replica: string, allowOutage: boolean): Promise<boolean> {
  return run(async () =>
    replaceRouting(
      model,
      await change<Routing>("POST", `${pathOf(model)}/replicas/${replica}/drain`, allowOutage ? { allow_outage: true } : {}),
    ),
  );
}

export async function undrain(model: string, replica: string): Promise<boolean> {
  return run(async () => replaceRouting(model, await change<Routing>("POST", `${pathOf(model)}/replicas/${replica}/undrain`)));
}

export async function restart(model: string, engine: string, allowOutage: boolean): Promise<boolean> {
  return run(() => change("POST", `${pathOf(model)}/replicas/${engine}/0/restart`, allowOutage ? { allow_outage: true } : {}));
}

export async function rollingRestart(model: string, allowOutage: boolean): Promise<boolean> {
  return run(() => change("POST", `${pathOf(model)}/rolling-restart`, allowOutage ? { allow_outage: true } : {}));
}

export async function cancelOperation(model: string): Promise<boolean> {
  return run(() => change("DELETE", `${pathOf(model)}/operation`));
}
