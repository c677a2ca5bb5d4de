//! A real browser without a screen: Chromium, driven over its `DevTools` pipe.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    path::Path,
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc::{self, Receiver},
    thread,
    time::Instant,
};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::environment::deadline;

/// A browser with one page. Dropping it kills it.
#[derive(Debug)]
pub struct Browser {
    child: Child,
    to: ChildStdin,
    from: Receiver<Value>,
    session: String,
    last: u64,
    /// What the page and the browser complained of, since the page was opened.
    complaints: Vec<String>,
    loaded: bool,
    _home: TempDir,
}

impl Browser {
    /// Starts it.
    pub fn start() -> Result<Self> {
        let home = tempfile::tempdir()?;
        // It reads requests from descriptor 3, and answers on 4.
        let script = "exec chromium \"$@\" 3<&0 4>&1 </dev/null >/dev/null 2>&1";
        let mut command = Command::new("sh");
        command.args(["-c", script, "sh", "--headless", "--no-sandbox", "--disable-gpu"]);
        command.args(["--remote-debugging-pipe", "--no-first-run", "--disable-extensions"]);
        command.args(["--disable-background-networking", "--disable-dev-shm-usage"]);
        command.arg(format!("--user-data-dir={}", home.path().display())).arg("about:blank");
        command.env("HOME", home.path()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().context("cannot start chromium")?;
        let to = child.stdin.take().context("its stdin is piped")?;
        let out = BufReader::new(child.stdout.take().context("its stdout is piped")?);
        let (sender, from) = mpsc::channel();
        thread::spawn(move || {
            for message in out.split(0) {
                let Ok(Ok(value)) = message.map(|bytes| serde_json::from_slice(&bytes)) else {
                    break;
                };
                if sender.send(value).is_err() {
                    break;
                }
            }
        });
        let (session, complaints) = (String::new(), Vec::new());
        let mut browser =
            Self { child, to, from, session, last: 0, complaints, loaded: false, _home: home };
        let page = browser.ask("Target.createTarget", json!({ "url": "about:blank" }))?;
        let attach = json!({ "targetId": page["targetId"], "flatten": true });
        let session = browser.ask("Target.attachToTarget", attach)?;
        session["sessionId"].as_str().context("a session")?.clone_into(&mut browser.session);
        for domain in ["Page", "Runtime", "Log", "Network"] {
            browser.ask(&format!("{domain}.enable"), json!({}))?;
        }
        Ok(browser)
    }

    /// Sends a request and waits for its answer.
    pub fn ask(&mut self, method: &str, parameters: Value) -> Result<Value> {
        self.last += 1;
        let mut request = json!({ "id": self.last, "method": method });
        request["params"] = parameters;
        if !self.session.is_empty() {
            request["sessionId"] = self.session.clone().into();
        }
        let mut bytes = serde_json::to_vec(&request)?;
        bytes.push(0);
        self.to.write_all(&bytes)?;
        self.to.flush()?;
        loop {
            let mut message = self.next(method)?;
            if message["id"].as_u64() == Some(self.last) {
                ensure!(message["error"].is_null(), "{method}: {}", message["error"]);
                return Ok(message["result"].take());
            }
        }
    }

    /// The next message; events are taken notice of.
    fn next(&mut self, what: &str) -> Result<Value> {
        let message = self
            .from
            .recv_timeout(deadline())
            .with_context(|| format!("the browser does not answer: {what}"))?;
        let parameters = &message["params"];
        match message["method"].as_str() {
            Some("Page.loadEventFired") => self.loaded = true,
            Some("Runtime.exceptionThrown") => {
                self.complaints.push(parameters["exceptionDetails"].to_string());
            }
            Some("Runtime.consoleAPICalled") => {
                self.complaints.push(parameters["args"].to_string());
            }
            // What the browser recommends is verbose: a token has no user's name.
            Some("Log.entryAdded") if parameters["entry"]["level"] != "verbose" => {
                self.complaints.push(parameters["entry"].to_string());
            }
            _ => {}
        }
        Ok(message)
    }

    /// How wide the page is, and whether it is dark.
    pub fn look(&mut self, width: u32, dark: bool) -> Result<()> {
        let size =
            json!({ "width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600 });
        self.ask("Emulation.setDeviceMetricsOverride", size)?;
        let scheme =
            json!({ "name": "prefers-color-scheme", "value": if dark { "dark" } else { "light" } });
        self.ask("Emulation.setEmulatedMedia", json!({ "features": [scheme] }))?;
        Ok(())
    }

    /// Opens an address, and waits until all of it is there.
    pub fn open(&mut self, url: &str) -> Result<()> {
        self.complaints.clear();
        self.loaded = false;
        let answer = self.ask("Page.navigate", json!({ "url": url }))?;
        ensure!(answer["errorText"].is_null(), "{url}: {answer}");
        self.until_loaded()
    }

    /// Waits until a page that the page itself has opened is there.
    pub fn until_loaded(&mut self) -> Result<()> {
        let until = Instant::now() + deadline();
        while !self.loaded {
            self.next("a page is loaded")?;
            ensure!(Instant::now() < until, "the page is not loaded in time");
        }
        Ok(())
    }

    /// From now on, [`Browser::until_loaded`] waits for the next page.
    pub fn expect_page(&mut self) {
        self.loaded = false;
    }

    /// The value of an expression in the page; of a promise, what it comes to.
    pub fn value(&mut self, expression: &str) -> Result<Value> {
        let parameters =
            json!({ "expression": expression, "returnByValue": true, "awaitPromise": true });
        let mut answer = self.ask("Runtime.evaluate", parameters)?;
        if !answer["exceptionDetails"].is_null() {
            bail!("{}", answer["exceptionDetails"]);
        }
        Ok(answer["result"]["value"].take())
    }

    /// Waits until an expression holds in the page.
    pub fn until(&mut self, expression: &str) -> Result<()> {
        // The page's own clock drives it, so nothing here waits in vain.
        let within = deadline().as_millis();
        let held = self.value(&format!(
            "new Promise((done) => {{ const begin = Date.now(); const look = () => {{ \
             if ({expression}) done(true); else if (Date.now() - begin > {within}) done(false); \
             else setTimeout(look, 50); }}; look(); }})"
        ))?;
        ensure!(held == true, "never became true in the page: {expression}");
        Ok(())
    }

    /// Moves, presses or releases the mouse.
    pub fn mouse(&mut self, kind: &str, x: f64, y: f64) -> Result<()> {
        let buttons = u8::from(kind != "mouseReleased");
        let event = json!({ "type": kind, "x": x, "y": y, "button": "left", "buttons": buttons, "clickCount": 1 });
        self.ask("Input.dispatchMouseEvent", event)?;
        Ok(())
    }

    /// What was complained of since the page was opened.
    #[must_use]
    pub fn complaints(&self) -> &[String] {
        &self.complaints
    }

    /// Saves a picture of the page's top, or of all of it, as PNG.
    pub fn picture(&mut self, path: &Path, whole: bool) -> Result<()> {
        let parameters =
            json!({ "format": "png", "captureBeyondViewport": whole, "optimizeForSpeed": false });
        let answer = self.ask("Page.captureScreenshot", parameters)?;
        let text = answer["data"].as_str().context("a picture")?;
        fs::write(path, decoded(text)?)?;
        Ok(())
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Base64, as `DevTools` writes it.
fn decoded(text: &str) -> Result<Vec<u8>> {
    let digit = |byte: u8| -> Result<u32> {
        Ok(u32::from(match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            other => bail!("{other} is no digit of base64"),
        }))
    };
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    for four in text.trim_end_matches('=').as_bytes().chunks(4) {
        let mut sum = 0;
        for byte in four {
            sum = sum << 6 | digit(*byte)?;
        }
        sum <<= 6 * (4 - four.len());
        bytes.extend(&sum.to_be_bytes()[1..four.len()]);
    }
    Ok(bytes)
}
