"use strict";
(() => {
  const controls = document.getElementById("controls");
  const entries = JSON.parse(document.getElementById("data").textContent).steps.find((step) => step.id === "files")?.entries ?? [];
  const reasons = [...document.querySelectorAll("details.entry")];

  function size(bytes) {
    const units = ["B", "KiB", "MiB", "GiB"];
    let unit = 0;
    for (; bytes >= 1000 && unit < 3; unit += 1) bytes /= 1024;
    return `${bytes.toFixed(unit ? 1 : 0)} ${units[unit]}`;
  }

  function show(capability) {
    for (const element of document.querySelectorAll("[data-capability]")) {
      element.hidden = capability !== "" && element.dataset.capability !== capability;
    }
    // Hide a directory without visible entries.
    for (const item of [...document.querySelectorAll("#after li")].reverse()) {
      if (item.dataset.capability === undefined) {
        item.hidden = capability !== "" && item.querySelector("li[data-capability]:not([hidden])") === null;
      }
    }
    const visible = entries.filter((entry) => capability === "" || entry.capability === capability);
    const bytes = visible.reduce((sum, entry) => sum + (entry.size ?? 0), 0);
    document.getElementById("status").textContent = `${visible.length} of ${entries.length} mounted, ${size(bytes)}`;
  }

  function open(all) {
    for (const entry of reasons) entry.open = all;
  }

  if (controls !== null) {
    const button = document.getElementById("reasons");
    controls.addEventListener("change", (event) => show(event.target.value));
    controls.addEventListener("submit", (event) => event.preventDefault());
    button.addEventListener("click", () => {
      const pressed = button.getAttribute("aria-pressed") !== "true";
      button.setAttribute("aria-pressed", String(pressed));
      open(pressed);
    });
    controls.hidden = false;
    show(controls.elements.capability.value);
  }
  window.addEventListener("beforeprint", () => open(true));
})();
