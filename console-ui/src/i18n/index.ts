// The texts of the language that is shown.

import { computed } from "@preact/signals";
import { lang } from "../prefs";
import { en, type Texts } from "./en";
import { zh } from "./zh";

export const texts = computed<Texts>(() => (lang.value === "zh" ? zh : en));
