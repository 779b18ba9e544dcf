//! Output: JSON, sizes for people, questions, progress.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::io::{self, BufRead, IsTerminal, Write};
use std::path::Path;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use crate::error::{CliError, Result};
use crate::escape::is_plain;
pub(crate) use crate::escape::{hex_unless_text, hidden, message, name, path};

/// Shortest interval between two moves of a progress bar.
const TICK: Duration = Duration::from_millis(100);

/// The number of the form of all JSON. A field that goes, or gets another meaning, raises it; a new one does not.
pub(crate) const SCHEMA: u32 = 1;

/// An object as JSON has it: with the number of its form.
#[derive(Debug, Serialize)]
pub(crate) struct WithSchema<'a, T: Serialize> {
    schema: u32,
    #[serde(flatten)]
    value: &'a T,
}

impl<'a, T: Serialize> WithSchema<'a, T> {
    pub(crate) fn new(value: &'a T) -> Self {
        WithSchema { schema: SCHEMA, value }
    }
}

/// Prints an object as JSON.
pub(crate) fn json(object: &impl Serialize) -> Result<()> {
    print(format!("{}\n", json_text(&WithSchema::new(object))?).as_bytes())
}

/// Prints a list as JSON: an object that has it as the field `name`.
pub(crate) fn json_list<T: Serialize>(name: &'static str, list: &[T]) -> Result<()> {
    json(&BTreeMap::from([(name, list)]))
}

/// Prints text or bytes.
pub(crate) fn print(bytes: &[u8]) -> Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush()).map_err(CliError::Output)
}

/// Formats a size for people: at most four significant characters and a unit.
pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut unit = 0;
    let mut value = bytes as f64;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    match unit {
        0 => format!("{bytes} B"),
        _ if value < 10.0 => format!("{value:.1} {}", UNITS[unit]),
        _ => format!("{value:.0} {}", UNITS[unit]),
    }
}

/// Formats a share in percent.
pub(crate) fn percent(part: u64, whole: u64) -> String {
    if whole == 0 { "-".to_owned() } else { format!("{:.1} %", part as f64 * 100.0 / whole as f64) }
}

/// Reports a failure on standard error.
pub(crate) fn complain(error: &dyn Display) {
    eprintln!("moafs: {}", message(&in_words(&error.to_string())));
}

/// Returns a message without the numbers that Rust puts behind the system's words: ` (os error 2)`.
fn in_words(message: &str) -> String {
    const NUMBER: &str = " (os error ";
    let (mut words, mut rest) = (String::with_capacity(message.len()), message);
    while let Some((before, after)) = rest.split_once(NUMBER) {
        words.push_str(before);
        let digits = after.bytes().take_while(u8::is_ascii_digit).count();
        rest = match after[digits..].strip_prefix(')') {
            Some(behind) if digits > 0 => behind,
            _ => {
                words.push_str(NUMBER);
                after
            }
        };
    }
    words + rest
}

/// Returns a value as JSON that is safe to show: what is not plain text is escaped as JSON has it.
pub(crate) fn json_text(value: &impl Serialize) -> Result<String> {
    let text = serde_json::to_string_pretty(value).map_err(|error| CliError::Output(error.into()))?;
    if text.chars().all(|char| is_plain(char) || char == '\n') {
        return Ok(text);
    }
    // Outside of strings there is plain text only; inside, serde_json has escaped the ASCII control characters.
    let mut safe = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            char if is_plain(char) || char == '\n' => safe.push(char),
            char => safe.push_str(&format!("\\u{:04x}", u32::from(char))),
        }
    }
    Ok(safe)
}

/// Asks a question on standard error, and returns true if the answer on standard input begins with y. No answer is no.
pub(crate) fn confirm(question: &str) -> Result<bool> {
    eprint!("{question} ");
    let _ = io::stderr().flush();
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer).map_err(CliError::host("reading", Path::new("the answer")))?;
    Ok(answer.trim_start().starts_with(['y', 'Y']))
}

/// Returns a spinner that counts files, on terminals only.
pub(crate) fn spinner(doing: &'static str) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new_spinner();
    if let Ok(style) = ProgressStyle::with_template("{spinner} {msg}: {human_pos} files, {elapsed}") {
        bar.set_style(style);
    }
    bar.set_message(doing);
    bar.enable_steady_tick(TICK);
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_show_no_error_numbers() {
        let error = std::io::Error::from_raw_os_error(libc::ENOENT);
        assert_eq!(
            in_words(&format!("a: {error}, b: {error}; see")),
            "a: No such file or directory, b: No such file or directory; see"
        );
        for text in ["", "plain", "x (os error )", "x (os error 2", "x (os error two)"] {
            assert_eq!(in_words(text), text);
        }
    }

    #[test]
    fn sizes_are_short() {
        for (bytes, text) in
            [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (10 << 20, "10 MiB"), (1 << 40, "1.0 TiB")]
        {
            assert_eq!(size(bytes), text);
        }
        assert_eq!(size(u64::MAX), "16 EiB");
    }

    #[test]
    fn json_shows_no_control_character_and_keeps_every_name() {
        for text in ["\u{9b}31m", "a\nb\x1b\x7f", "\u{202e}", "grün\\u"] {
            let json = json_text(&text).unwrap();
            assert!(json.chars().all(is_plain), "{json:?}");
            assert_eq!(serde_json::from_str::<String>(&json).unwrap(), text);
        }
    }
}
