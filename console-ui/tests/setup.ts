// What modules look at when they are loaded, outside a browser.
const stub = (name: string, value: object): void => {
  if (!(name in globalThis)) Object.defineProperty(globalThis, name, { value, configurable: true, writable: true });
};
stub("navigator", { language: "en" });
stub("location", { hash: "" });
stub("document", { baseURI: "http://console.test/" });
