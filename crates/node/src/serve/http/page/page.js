// Pages can be read without this. It keeps them fresh, selects a time in a picture, and remembers the token until the
// browser's tab is closed.
"use strict";
(() => {
  const main = document.querySelector("main");
  let selecting = false;
  let fresh = Date.now();

  // A time selected with the mouse, a pen or a finger becomes the page's range.
  const onDown = (down) => {
    const plot = down.target.closest?.(".plot[data-from]");
    if (!plot || down.button !== 0 || !document.querySelector("form[data-range]")) return;
    const svg = plot.querySelector("svg");
    const box = svg.getBoundingClientRect();
    const at = (event) => Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
    const begin = at(down);
    const mark = document.createElementNS("http://www.w3.org/2000/svg", "rect");
    mark.setAttribute("class", "sel");
    mark.setAttribute("height", "100");
    svg.append(mark);
    selecting = true;
    down.preventDefault();
    const move = (event) => {
      mark.setAttribute("x", 1000 * Math.min(begin, at(event)));
      mark.setAttribute("width", 1000 * Math.abs(at(event) - begin));
    };
    const done = (event) => {
      removeEventListener("pointermove", move);
      removeEventListener("pointerup", done);
      removeEventListener("pointercancel", done);
      selecting = false;
      mark.remove();
      const ends = [begin, at(event)].sort((one, other) => one - other);
      if (event.type === "pointercancel" || ends[1] - ends[0] < 0.01) return;
      const [from, to] = [Number(plot.dataset.from), Number(plot.dataset.to)];
      const url = new URL(location.href);
      url.search = new URLSearchParams({
        from: Math.round(from + ends[0] * (to - from)),
        to: Math.round(from + ends[1] * (to - from)),
      });
      location.assign(url);
    };
    addEventListener("pointermove", move);
    addEventListener("pointerup", done);
    addEventListener("pointercancel", done);
  };
  addEventListener("pointerdown", onDown);

  // The token stays in this tab, for this server alone.
  const key = "drainprof.token";
  const fill = () => {
    for (const field of document.querySelectorAll("input[name=token]")) {
      field.value ||= sessionStorage.getItem(key) ?? "";
    }
  };
  addEventListener("submit", (event) => {
    const field = event.target.querySelector("input[name=token]");
    if (field) sessionStorage.setItem(key, field.value);
  });
  fill();

  // With the token, pages name call stacks, too. One that is not right any more is forgotten.
  const load = async () => {
    const token = sessionStorage.getItem(key);
    const response = await fetch(location.href, token ? { headers: { Authorization: `Bearer ${token}` } } : {});
    if (response.status !== 401 || !token) return response;
    sessionStorage.removeItem(key);
    return fetch(location.href);
  };

  // A live page is fetched again when the daemon has news; what the reader has opened stays open.
  const renew = async () => {
    const busy = document.activeElement?.matches(":focus-visible, input") && main.contains(document.activeElement);
    const idle = !selecting && !document.hidden && !busy;
    if (!idle || Date.now() - fresh < 4000 || String(getSelection()) !== "") return;
    fresh = Date.now();
    await replace();
  };
  const replace = async () => {
    const response = await load();
    if (!response.ok) return;
    const next = new DOMParser().parseFromString(await response.text(), "text/html").querySelector("main");
    const open = [...main.querySelectorAll("details")].map((one) => one.open);
    const details = next.querySelectorAll("details");
    if (open.length === details.length) details.forEach((one, index) => { one.open = open[index]; });
    main.replaceChildren(...next.childNodes);
    fill();
  };
  if (sessionStorage.getItem(key) && location.pathname.startsWith("/process/")) replace().catch(() => {});
  const clock = document.getElementById("clock");
  if (main.hasAttribute("data-live")) {
    const news = new EventSource("/events");
    news.addEventListener("state", (event) => {
      clock.textContent = "state of " + new Date(Number(event.data)).toISOString().slice(11, 19) + " UTC";
      renew().catch(() => { clock.textContent = "the daemon does not answer"; });
    });
  }
})();
