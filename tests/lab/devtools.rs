//! A browser driven by its DevTools protocol, over a pipe: no port, and keys as a keyboard sends them.

use std::{
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc::{Receiver, channel},
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

/// The longest wait for an answer; other tests run beside this one.
const LIMIT: Duration = Duration::from_secs(120);

/// A headless browser with one page, which ends when this is dropped.
pub(crate) struct Browser {
    child: Child,
    to: ChildStdin,
    from: Receiver<Value>,
    session: Option<String>,
    calls: u64,
    events: Vec<Value>,
}

impl Browser {
    /// Starts it with a profile of its own in this directory.
    pub(crate) fn start(program: &Path, directory: &Path) -> Browser {
        // The browser reads calls from its file descriptor 3 and answers on 4.
        let mut child = Command::new("sh")
            .args(["-c", "exec \"$0\" \"$@\" 3<&0 4>&1 </dev/null >&2"])
            .arg(program)
            .args(["--headless", "--no-sandbox", "--disable-gpu"])
            .args(["--remote-debugging-pipe", "--window-size=1200,900"])
            .arg(format!("--user-data-dir={}", directory.display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the browser starts");
        let to = child.stdin.take().expect("it is piped");
        let answers = BufReader::new(child.stdout.take().expect("it is piped"));
        let (sender, from) = channel();
        thread::spawn(move || {
            for message in answers.split(0).map_while(Result::ok) {
                let message = serde_json::from_slice(&message).expect("it is JSON");
                if sender.send(message).is_err() {
                    break;
                }
            }
        });
        let mut browser = Browser {
            child,
            to,
            from,
            session: None,
            calls: 0,
            events: Vec::new(),
        };
        let made = browser.call("Target.createTarget", &json!({ "url": "about:blank" }));
        let page = json!({ "targetId": made["targetId"], "flatten": true });
        let attached = browser.call("Target.attachToTarget", &page);
        browser.session = attached["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Runtime", "Log", "Network"] {
            browser.call(&format!("{domain}.enable"), &json!({}));
        }
        browser
    }

    /// Calls a method, and returns its result.
    #[track_caller]
    pub(crate) fn call(&mut self, method: &str, parameters: &Value) -> Value {
        self.calls += 1;
        let mut call = json!({ "id": self.calls, "method": method, "params": parameters });
        if let Some(session) = &self.session {
            call["sessionId"] = session.as_str().into();
        }
        let sent = self.to.write_all(format!("{call}\0").as_bytes());
        sent.expect("the browser runs");
        loop {
            let message = self.from.recv_timeout(LIMIT);
            let mut message = message.unwrap_or_else(|error| panic!("{method}: {error}"));
            if message["id"] == self.calls {
                assert!(message["error"].is_null(), "{method}: {message}");
                return message["result"].take();
            }
            self.events.push(message);
        }
    }

    /// The value of an expression in the page.
    #[track_caller]
    pub(crate) fn evaluate(&mut self, expression: &str) -> Value {
        let call = json!({ "expression": expression, "returnByValue": true });
        let mut answer = self.call("Runtime.evaluate", &call);
        let thrown = &answer["exceptionDetails"];
        assert!(thrown.is_null(), "{thrown}");
        answer["result"]["value"].take()
    }

    /// Opens a page, and waits until it is loaded.
    #[track_caller]
    pub(crate) fn open(&mut self, page: &Path) {
        // The page that is left has this mark; the one that follows does not.
        self.evaluate("window.isLeft = true");
        let url = format!("file://{}", page.display());
        self.call("Page.navigate", &json!({ "url": url }));
        let there = format!(
            "!window.isLeft && document.readyState === 'complete' && location.href === {url:?}"
        );
        let deadline = Instant::now() + LIMIT;
        while self.evaluate(&there) != true {
            assert!(Instant::now() < deadline, "{url} did not load");
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Presses a key: Tab, ArrowRight or Escape.
    #[track_caller]
    pub(crate) fn press(&mut self, key: &str) {
        let code = match key {
            "Tab" => 9,
            "Escape" => 27,
            "ArrowRight" => 39,
            other => panic!("{other} has no code here"),
        };
        for kind in ["rawKeyDown", "keyUp"] {
            let event =
                json!({ "type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code });
            self.call("Input.dispatchKeyEvent", &event);
        }
    }

    /// The addresses of all that was loaded, over a network or from files.
    pub(crate) fn loaded(&self) -> Vec<&str> {
        let requests = self.of_kind(&["Network.requestWillBeSent"]);
        requests
            .filter_map(|event| event["params"]["request"]["url"].as_str())
            .collect()
    }

    /// What the page and the browser wrote on the console.
    pub(crate) fn complaints(&self) -> Vec<&Value> {
        self.of_kind(&[
            "Runtime.consoleAPICalled",
            "Runtime.exceptionThrown",
            "Log.entryAdded",
        ])
        .collect()
    }

    fn of_kind(&self, kinds: &'static [&str]) -> impl Iterator<Item = &Value> {
        let is_it = move |event: &&Value| kinds.iter().any(|kind| event["method"] == *kind);
        self.events.iter().filter(is_it)
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Its other processes end with it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Decodes base64, in which the protocol has files.
pub(crate) fn decoded(text: &str) -> Vec<u8> {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let value = |digit: u8| DIGITS.iter().position(|&other| other == digit);
    let (mut bits, mut count, mut bytes) = (0_usize, 0, Vec::new());
    for value in text.bytes().filter_map(value) {
        bits = ((bits << 6) & 0xffff) | value;
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    bytes
}
