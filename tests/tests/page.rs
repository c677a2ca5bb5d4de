//! The daemon's pages and `-o html` in a real browser: at three widths, light and dark, with data and without.

use std::{env, fs, path::Path, sync::Once};

use anyhow::{Context as _, Result, ensure};
use drainprof_tests::{
    browser::Browser,
    environment::{has_programs, requires_root, skip},
    node::{Daemon, TOKEN, alone, sum},
    target::Target,
    tracer::run_to_end,
};
use serde_json::Value;

/// Widths of a telephone, a laptop and a large screen.
const WIDTHS: [u32; 3] = [380, 1280, 2560];
/// What every page must be; returns what is wrong. Contrast is computed of each text and what is behind it.
const CHECK: &str = r#"(() => {
  const wrong = [];
  const root = document.documentElement;
  if (root.scrollWidth > root.clientWidth) {
    const wide = [...document.querySelectorAll("body *")].filter((one) =>
      !one.closest(".scroll, svg") && one.getBoundingClientRect().right > root.clientWidth + 1);
    wrong.push(`overflow: ${root.scrollWidth} > ${root.clientWidth}: ${wide.slice(0, 3).map((one) => one.outerHTML.slice(0, 120))}`);
  }
  if (!root.lang || !document.title) wrong.push("no language or title");
  if (document.querySelectorAll("h1").length !== 1) wrong.push("not one h1");
  let level = 1;
  for (const head of document.querySelectorAll("h1, h2, h3, h4")) {
    const own = Number(head.tagName[1]);
    if (own > level + 1) wrong.push(`a head skips a level: ${head.textContent}`);
    level = own;
  }
  for (const table of document.querySelectorAll("table")) {
    if (!table.caption || !table.querySelector("thead th[scope=col]")) wrong.push(`a table without heads: ${table.textContent.slice(0, 80)}`);
  }
  for (const field of document.querySelectorAll("input, select")) {
    if (!field.labels?.length) wrong.push(`a field without label: ${field.outerHTML}`);
  }
  for (const picture of document.querySelectorAll("svg[role=img], img")) {
    if (!picture.getAttribute("aria-label")?.trim()) wrong.push("a picture without words");
  }
  for (const link of document.querySelectorAll("a, button, summary")) {
    if (!link.textContent.trim()) wrong.push(`a link without text: ${link.outerHTML}`);
    if (link.tabIndex < 0) wrong.push(`not by keyboard: ${link.outerHTML}`);
  }
  for (const area of document.querySelectorAll(".scroll")) {
    if (area.tabIndex < 0 || !area.getAttribute("aria-label")) wrong.push("a scrolling area not by keyboard");
  }
  const ids = [...document.querySelectorAll("[id]")].map((one) => one.id);
  if (new Set(ids).size !== ids.length) wrong.push("an id twice");
  const light = (colour) => {
    const [r, g, b] = colour.match(/[\d.]+/g).map((part) => {
      const value = part / 255;
      return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (one) => {
    for (let at = one; at; at = at.parentElement) {
      const colour = getComputedStyle(at).backgroundColor;
      if (!colour.startsWith("rgba(") ) return colour;
    }
    return "rgb(255, 255, 255)";
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const text = walker.currentNode, own = text.parentElement;
    if (!text.data.trim() || own.closest("svg, script, title")) continue;
    const [one, other] = [light(getComputedStyle(own).color), light(behind(own))];
    const contrast = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    if (contrast < 4.5) wrong.push(`contrast ${contrast.toFixed(2)}: ${text.data.slice(0, 60)}`);
  }
  return wrong;
})()"#;

/// Checks the page that is open.
fn check(browser: &mut Browser, what: &str) -> Result<()> {
    let wrong = browser.value(CHECK)?;
    ensure!(wrong.as_array().is_some_and(Vec::is_empty), "{what}: {wrong:#}");
    ensure!(browser.complaints().is_empty(), "{what}: {:#?}", browser.complaints());
    Ok(())
}

/// Opens a page at all widths, light and dark; pictures go where `DRAINPROF_PICTURES` says.
fn at_all_widths(browser: &mut Browser, name: &str, url: &str) -> Result<()> {
    for dark in [false, true] {
        for width in WIDTHS {
            let what = format!("{name}-{width}-{}", if dark { "dark" } else { "light" });
            browser.look(width, dark)?;
            browser.open(url)?;
            check(browser, &what)?;
            accessible(browser, &what)?;
            let scheme =
                browser.value("getComputedStyle(document.documentElement).backgroundColor")?;
            ensure!((scheme == "rgb(255, 255, 255)") != dark, "{what}: {scheme}");
            if let Some(directory) = env::var_os("DRAINPROF_PICTURES") {
                browser.picture(&Path::new(&directory).join(format!("{what}.png")), true)?;
            }
        }
    }
    Ok(())
}

fn can_run() -> bool {
    requires_root() && has_programs(&["chromium"])
}

/// A daemon that watches nothing has pages without a fault.
#[test]
fn an_empty_daemon() -> Result<()> {
    if !can_run() {
        return Ok(());
    }
    let _alone = alone();
    let nothing = "select.rules = [{ action = \"include\", exe = \"/nothing\" }]";
    let daemon = Daemon::start(&[], nothing)?;
    let mut browser = Browser::start()?;
    let url = |path: &str| format!("http://127.0.0.1:{}{path}", daemon.port());
    at_all_widths(&mut browser, "empty", &url("/"))?;
    let text = browser.value("document.body.textContent")?;
    ensure!(text.as_str().is_some_and(|text| text.contains("No process is watched")), "{text}");
    at_all_widths(&mut browser, "help", &url("/help"))?;
    browser.look(380, false)?;
    drop(browser);
    daemon.finish()?;
    Ok(())
}

/// A service that leaks: every page of it, the report of a window by the form, the same report as a file, and a range that
/// is selected with the mouse has the numbers that the API gives for it.
#[test]
fn a_service_that_leaks() -> Result<()> {
    if !can_run() {
        return Ok(());
    }
    let _alone = alone();
    // Its rule is about to fire, but opens no window meanwhile.
    let quick = "window.cost = \"400%\"\ngovernor.enabled = false\ndaemon.level = \"objects\"\n\
                 triggers.dsr_low.for = \"10m\"\ntriggers.dsr_drop.enabled = false\n";
    let daemon = Daemon::start(&["arena"], quick)?;
    let mut service = Target::start("routing", &["rate=500"])?;
    let pid = service.pid();
    daemon.attached(&[pid])?;
    service.go()?;
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(pid.cast_signed()),
        nix::sys::signal::Signal::SIGUSR1,
    )?;
    daemon.until("enough is pinned", |state| sum(state, "test-arena", "pinned") > 500)?;
    let mut browser = Browser::start()?;
    let url = |path: &str| format!("http://127.0.0.1:{}{path}", daemon.port());
    // A window, by the form, with the token.
    browser.look(1280, false)?;
    browser.open(&url(&format!("/process/{pid}")))?;
    browser.expect_page();
    browser.value(&format!(
        "{{ const form = document.querySelector('form[method=post]'); form.seconds.value = 2; \
         form.token.value = '{TOKEN}'; form.requestSubmit(); }}"
    ))?;
    browser.until_loaded()?;
    let path = browser.value("location.pathname")?;
    let path = path.as_str().context("a path")?.to_owned();
    ensure!(path.starts_with("/window/"), "{path}");
    let state = daemon.until_window_ended()?;
    ensure!(state["windows"][0]["outcome"] == "finished", "{}", state["windows"]);
    browser.open(&url(&path))?;
    ensure!(browser.value("document.querySelector('input[name=token]').value")? == TOKEN);
    browser.expect_page();
    browser.value("document.querySelector('form[method=post]').requestSubmit()")?;
    browser.until_loaded()?;
    for width in WIDTHS {
        browser.look(width, width == 380)?;
        let what = format!("window at {width}");
        check(&mut browser, &what)?;
        accessible(&mut browser, &what)?;
    }
    let text = browser.value("document.body.textContent")?;
    ensure!(text.as_str().is_some_and(|text| text.contains("make_session")), "{text}");
    at_all_widths(&mut browser, "node", &url("/"))?;
    at_all_widths(&mut browser, "process", &url(&format!("/process/{pid}")))?;
    names_who_pins(&mut browser, &url(&format!("/process/{pid}")))?;
    select(&mut browser, &daemon, pid)?;
    accessible(&mut browser, "a selected time")?;
    // The same report as a file.
    let (_, report) =
        daemon.get(&format!("/api/v1/windows/{}/report", state["windows"][0]["id"]))?;
    let directory = tempfile::tempdir()?;
    let (json, html) = (directory.path().join("w.json"), directory.path().join("w.html"));
    fs::write(&json, report)?;
    let arguments =
        ["report", &json.to_string_lossy(), "-o", "html", "-O", &html.to_string_lossy()];
    let outcome = run_to_end(&arguments)?;
    ensure!(outcome.code == Some(0), "{outcome:?}");
    ensure!(fs::metadata(&html)?.len() < 1 << 20);
    at_all_widths(&mut browser, "file", &format!("file://{}", html.display()))?;
    drop(browser);
    service.go()?;
    service.finish()?;
    daemon.finish()?;
    Ok(())
}

/// With the token that was typed into a form of this tab, the page of a process names call stacks; without it, it does not.
fn names_who_pins(browser: &mut Browser, url: &str) -> Result<()> {
    browser.look(1280, false)?;
    browser.open(url)?;
    browser.until("document.body.textContent.includes('make_session')")?;
    // The answer on top is the window's, which knows most.
    browser.until("document.querySelector('section.why').textContent.includes('make_session')")?;
    check(browser, "who pins")?;
    accessible(browser, "who pins")?;
    // A form still has it.
    ensure!(browser.value("document.querySelector('input[name=token]').value")? == TOKEN);
    browser.value("sessionStorage.setItem('drainprof.token', 'another')")?;
    browser.open(url)?;
    browser.until("sessionStorage.getItem('drainprof.token') === null")?;
    browser.open(url)?;
    let text = browser.value("document.body.textContent")?;
    let text = text.as_str().context("a text")?;
    ensure!(text.contains("to clients with the token") && !text.contains("make_session"), "{text}");
    // The refusal stands in the console; the next page has none of it.
    browser.open(url)
}

/// Drags across a picture, and compares the page of that time with the API.
fn select(browser: &mut Browser, daemon: &Daemon, pid: u32) -> Result<()> {
    browser.look(1280, false)?;
    browser.open(&format!("http://127.0.0.1:{}/process/{pid}?last=60", daemon.port()))?;
    let place = browser.value(
        "(() => { const plot = document.querySelector('.plot[data-from]'); plot.scrollIntoView({block: 'center'}); \
         const box = plot.getBoundingClientRect(); return [box.left, box.top, box.width, box.height]; })()",
    )?;
    let at = |index: usize| place[index].as_f64().unwrap_or_default();
    let (left, y, width) = (at(0), at(1) + at(3) / 2.0, at(2));
    browser.expect_page();
    browser.mouse("mousePressed", left + 0.4 * width, y)?;
    browser.mouse("mouseMoved", left + 0.7 * width, y)?;
    browser.mouse("mouseReleased", left + width - 1.0, y)?;
    browser.until_loaded()?;
    check(browser, "a selected time")?;
    let query = browser.value("location.search")?;
    let query = query.as_str().context("a query")?;
    ensure!(query.contains("from=") && query.contains("to="), "{query}");
    let cells = browser.value(
        "[...document.querySelectorAll('tbody tr')].filter((row) => row.cells[0].textContent === 'test-arena') \
         .map((row) => [...row.cells].slice(1, 4).map((cell) => Number(cell.textContent)))[0]",
    )?;
    let (status, body) = daemon.get(&format!("/api/v1/targets/{pid}/history{query}"))?;
    ensure!(status == 200, "{body}");
    let course: Value = serde_json::from_str(&body)?;
    let points = course["processes"][0]["profiles"][0]["points"].as_array().context("points")?;
    let sums = ["opened", "drainable", "pinned"]
        .map(|field| points.iter().filter_map(|point| point["added"][field].as_u64()).sum::<u64>());
    ensure!(
        sums[2] > 0 && cells == serde_json::json!(sums),
        "{cells} of the page, {sums:?} of the API"
    );
    Ok(())
}

/// axe-core finds nothing serious in the page that is open; `cargo xtask setup` installs it.
fn accessible(browser: &mut Browser, what: &str) -> Result<()> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/axe/package/axe.min.js");
    let Ok(script) = fs::read_to_string(&path) else {
        static TOLD: Once = Once::new();
        TOLD.call_once(|| {
            skip("axe-core is not installed (`cargo xtask setup` needs npm for it); own checks were made");
        });
        return Ok(());
    };
    browser.value(&format!("{script}; 0"))?;
    let found = browser.value(
        "axe.run().then((found) => found.violations.map((one) => \
         [one.impact, one.id, one.nodes.slice(0, 3).map((node) => node.html)]))",
    )?;
    let all = found.as_array().context("a list")?;
    let bad = |one: &&Value| one[0] == "serious" || one[0] == "critical";
    let bad: Vec<_> = all.iter().filter(bad).collect();
    ensure!(bad.is_empty(), "{what}: {bad:#?}");
    Ok(())
}
