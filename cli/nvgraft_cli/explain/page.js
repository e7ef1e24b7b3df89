"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent).whatif;
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const find = (id) => document.getElementById(id);
  const form = find("controls");
  const picked = find("picked");
  const bit = (digits, number) => (parseInt(digits.at(-1 - (number >> 2)) ?? "0", 16) >> (number & 3)) & 1;
  const numbers = (text) => text.split(" ").filter(Boolean).map(Number);
  const create = (name, ...children) => {
    const element = document.createElement(name);
    element.append(...children);
    return element;
  };

  function size(bytes) {
    const units = ["B", "KiB", "MiB", "GiB"];
    let unit = 0;
    for (; bytes >= 1000 && unit < 3; unit += 1) bytes /= 1024;
    return `${bytes.toFixed(unit ? 1 : 0)} ${units[unit]}`;
  }

  // What is chosen: the number of a mode and of devices, and a bit for each capability.
  function chosen() {
    const of = (name) => Number(form.querySelector(`input[name=${name}]:checked`)?.value ?? 0);
    const on = all("input[name=capability]:checked", form).map((input) => Number(input.value));
    return { mode: of("mode"), devices: of("devices"), capabilities: on };
  }

  function resultOf({ mode, devices, capabilities }) {
    const bits = capabilities.reduce((sum, number) => sum + (1 << number), 0);
    return data.results[data.table[((mode * data.devices.length + devices) << data.capabilities.length) + bits]];
  }

  function namesOf(capabilities) {
    return [...data.fixed, ...capabilities.map((number) => data.capabilities[number])].sort();
  }

  // The options that ask nvgraft for the same.
  function command({ mode, devices, capabilities }) {
    const names = namesOf(capabilities);
    const words = [];
    if (data.devices[devices] !== null) words.push(`--env ${data.variables[0]}=${data.devices[devices]}`);
    if (data.heeding[mode] && names.join() !== asked.names) words.push(`--env ${data.variables[1]}=${names.join()}`);
    if (mode !== asked.mode) words.push(`--mode ${data.modes[mode]}`);
    return words.join(" ");
  }

  let result;
  let asked = {};

  function show() {
    const choice = chosen();
    result = resultOf(choice);
    const [level, short, verdict, mounts, paths, proofs] = result;
    const has = (number) => bit(mounts, number) === 1;
    for (const line of all(".line")) line.classList.toggle("off", !numbers(line.dataset.mounts).some(has));
    for (const picture of all(".picture")) {
      const lines = all(".line", picture);
      for (const box of all(".box", picture)) {
        const count = numbers(box.dataset.lines).filter((number) => !lines[number].classList.contains("off")).length;
        box.querySelector("tspan").textContent = count;
        box.classList.toggle("off", count === 0);
        box.setAttribute("aria-label", `${box.dataset.name.trim()}: ${count}`);
      }
    }
    for (const item of all("[data-mount]")) item.hidden = !has(Number(item.dataset.mount));
    for (const group of all("[data-group]")) {
      const shown = all("[data-mount]:not([hidden])", group);
      const bytes = shown.reduce((sum, item) => sum + (data.mounts[item.dataset.mount][5] ?? 0), 0);
      group.hidden = shown.length === 0;
      group.querySelector("small").textContent = bytes ? `${shown.length}, ${size(bytes)}` : `${shown.length}`;
    }
    for (const item of all("[data-path]")) item.hidden = bit(paths, Number(item.dataset.path)) === 0;
    // A directory that only leads to hidden paths is hidden too, the innermost first.
    for (const item of all("#after li").reverse()) {
      if (item.dataset.path === undefined && item.querySelector("[data-path]") !== null) {
        item.hidden = item.querySelector("[data-path]:not([hidden])") === null;
      }
    }
    for (const search of all("[data-search]")) search.hidden = !proofs.includes(Number(search.dataset.search));
    const none = find("no-search");
    if (none !== null) none.hidden = proofs.length > 0;
    const count = data.mounts.filter((_, number) => has(number)).length;
    const same = command(choice) === "";
    const heeded = data.heeding[choice.mode];
    if (find("capabilities") !== null) {
      find("capabilities").disabled = !heeded;
      find("default").hidden = !heeded || namesOf(choice.capabilities).length > 0;
    }
    find("unheeded").hidden = heeded;
    find("short").textContent = short;
    find("short").className = `verdict ${level}`;
    find("short").hidden = same;
    find("verdict").textContent = same ? "As asked:" : verdict;
    find("count").textContent = count === 1 ? "1 mount." : `${count} mounts.`;
    find("changed").hidden = find("as-asked").hidden = same;
    find("command").textContent = command(choice);
    document.body.classList.toggle("changed", !same);
    unpick();
    for (const picture of all(".picture")) reach(picture);
  }

  // ---- picking

  // One line of a picture is in the order of the Tab key; the arrow keys lead to the others.
  function reach(picture, line = picture.querySelector(".line:not(.off)")) {
    for (const one of all(".line", picture)) one.setAttribute("tabindex", one === line ? "0" : "-1");
  }

  function unpick() {
    picked.hidden = true;
    picked.replaceChildren();
    for (const picture of all(".picture")) picture.classList.remove("picking");
    for (const element of all(".picture .picked")) element.classList.remove("picked");
    for (const line of all(".line")) line.setAttribute("aria-checked", "false");
    for (const box of all(".box")) box.setAttribute("aria-pressed", "false");
  }

  // Close the panel, and give the keyboard focus back to what was picked.
  function leave() {
    const shown = [...all(".box.picked"), ...all(".line.picked")].filter((one) => one.checkVisibility());
    unpick();
    shown[0]?.focus();
  }

  function mark(picture, lines) {
    unpick();
    picture.classList.add("picking");
    for (const line of lines) line.classList.add("picked");
    picked.hidden = false;
  }

  // Called with what the panel shows: it may lie below what is seen.
  function present(...content) {
    const close = create("button", "Close");
    close.type = "button";
    close.className = "close";
    close.addEventListener("click", leave);
    picked.append(close, ...content);
    picked.scrollIntoView({ block: "nearest" });
  }

  function mountOf(line) {
    return numbers(line.dataset.mounts).find((number) => bit(result[3], number) === 1);
  }

  function pickLine(picture, line) {
    mark(picture, [line]);
    line.setAttribute("aria-checked", "true");
    reach(picture, line);
    const [source, target, why, capability, how, bytes] = data.mounts[mountOf(line)];
    const list = create("dl");
    for (const [name, value, code] of [["From", source, true], ["To", target, true], ["Capability", capability], ["Why", why], ["How", how], ["Size", bytes === null ? "" : size(bytes)]]) {
      if (value) list.append(create("div", create("dt", name), create("dd", code ? create("code", value) : value)));
    }
    present(create("h3", target.slice(target.lastIndexOf("/") + 1) || target), list);
  }

  function pickBox(picture, box) {
    const every = all(".line", picture);
    const lines = numbers(box.dataset.lines).map((number) => every[number]).filter((line) => !line.classList.contains("off"));
    mark(picture, lines);
    box.classList.add("picked");
    box.setAttribute("aria-pressed", "true");
    const list = create("ul");
    for (const line of lines) {
      const button = create("button", data.mounts[mountOf(line)][1]);
      button.type = "button";
      button.addEventListener("click", () => {
        pickLine(picture, line);
        picked.focus();
      });
      list.append(create("li", button));
    }
    present(create("h3", box.getAttribute("aria-label")), list);
  }

  function pressed(picture, event) {
    const line = event.target.closest(".line");
    const box = event.target.closest(".box");
    const again = event.key === "Enter" || event.key === " ";
    if (event.key === "Escape") unpick();
    else if (again && line !== null) pickLine(picture, line);
    else if (again && box !== null) pickBox(picture, box);
    else if (line !== null) {
      const lines = all(".line:not(.off)", picture);
      const place = lines.indexOf(line);
      const next = { ArrowDown: place + 1, ArrowRight: place + 1, ArrowUp: place - 1, ArrowLeft: place - 1, Home: 0, End: lines.length - 1 }[event.key];
      if (next === undefined) return;
      const other = lines[(next + lines.length) % lines.length];
      pickLine(picture, other);
      other.focus();
    } else return;
    event.preventDefault();
  }

  picked?.addEventListener("keydown", (event) => {
    if (event.key === "Escape") leave();
  });

  for (const picture of all(".picture")) {
    picture.classList.add("pickable");
    picture.setAttribute("role", "group");
    const lines = picture.querySelector(".lines");
    lines.setAttribute("role", "radiogroup");
    lines.setAttribute("aria-label", "Mounts");
    for (const line of all(".line", picture)) {
      const [source, target, , capability] = data.mounts[numbers(line.dataset.mounts)[0]];
      line.setAttribute("role", "radio");
      line.setAttribute("aria-label", `${source} to ${target}, ${capability}`);
    }
    for (const box of all(".box", picture)) {
      box.setAttribute("role", "button");
      box.setAttribute("tabindex", "0");
    }
    picture.addEventListener("keydown", (event) => pressed(picture, event));
    picture.addEventListener("click", (event) => {
      const line = event.target.closest(".line");
      const box = event.target.closest(".box");
      if (line !== null) {
        pickLine(picture, line);
        line.focus();
      } else if (box !== null) pickBox(picture, box);
      else unpick();
    });
  }

  if (form !== null) {
    const { mode, capabilities } = chosen();
    asked = { mode, names: namesOf(capabilities).join() };
    form.addEventListener("change", show);
    form.addEventListener("submit", (event) => event.preventDefault());
    find("changed").querySelector("button").addEventListener("click", (event) => {
      event.preventDefault();
      form.reset();
      show();
    });
    form.hidden = false;
    for (const words of all("[data-script]")) words.hidden = false;
    show();
  }

  // ---- reasons

  const button = find("reasons");
  function open(every) {
    button.setAttribute("aria-pressed", String(every));
    for (const reason of all("details.entry")) reason.open = every;
  }
  button.addEventListener("click", () => open(button.getAttribute("aria-pressed") !== "true"));
  button.hidden = all("details.entry").length === 0;
  window.addEventListener("beforeprint", () => open(true));
})();
