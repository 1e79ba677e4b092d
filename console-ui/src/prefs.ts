// What a viewer chose for this browser: language and theme. Kept in the browser only.

import { effect, signal } from "@preact/signals";

export type Lang = "en" | "zh";
export type Theme = "system" | "light" | "dark";

// A browser may forbid storage; then a choice lasts as long as the page.
function stored(name: string): string | null {
  try {
    return localStorage.getItem(`lmwarden.${name}`);
  } catch {
    return null;
  }
}

function store(name: string, value: string): void {
  try {
    localStorage.setItem(`lmwarden.${name}`, value);
  } catch {
    /* see above */
  }
}

function firstLang(): Lang {
  const choice = stored("lang");
  if (choice === "en" || choice === "zh") return choice;
  return navigator.language.toLowerCase().startsWith("zh") ? "zh" : "en";
}

function firstTheme(): Theme {
  const choice = stored("theme");
  return choice === "light" || choice === "dark" ? choice : "system";
}

export const lang = signal<Lang>(firstLang());
export const theme = signal<Theme>(firstTheme());

// True while dark colours are shown, by choice or by the system; charts are painted, not styled, and need to know.
export const dark = signal(false);

export function applyPrefs(): void {
  const system = matchMedia("(prefers-color-scheme: dark)");
  const systemDark = signal(system.matches);
  system.addEventListener("change", (event) => {
    systemDark.value = event.matches;
  });
  effect(() => {
    document.documentElement.lang = lang.value === "zh" ? "zh-Hans" : "en";
    store("lang", lang.value);
  });
  effect(() => {
    const choice = theme.value;
    if (choice === "system") document.documentElement.removeAttribute("data-theme");
    else document.documentElement.setAttribute("data-theme", choice);
    store("theme", choice);
    dark.value = choice === "dark" || (choice === "system" && systemDark.value);
  });
}
