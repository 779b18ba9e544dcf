//! Output: JSON, sizes and times for people, progress.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use moafs_runtime::Timestamp;
use serde::Serialize;

use crate::error::{CliError, Result};

/// How often a progress bar moves at most.
const TICK: Duration = Duration::from_millis(100);

/// Prints a value as JSON.
pub(crate) fn json(value: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(value).map_err(|error| CliError::Output(error.into()))?;
    print(format!("{text}\n").as_bytes())
}

/// Prints text or bytes.
pub(crate) fn print(bytes: &[u8]) -> Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush()).map_err(CliError::Output)
}

/// A size for people: at most four significant characters and a unit.
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

/// A share in percent.
pub(crate) fn percent(part: u64, whole: u64) -> String {
    if whole == 0 { "-".to_owned() } else { format!("{:.1} %", part as f64 * 100.0 / whole as f64) }
}

/// A time of day as `YYYY-MM-DD hh:mm:ss` UTC.
pub(crate) fn time(at: Timestamp) -> String {
    let (days, secs) = (at.secs.div_euclid(86_400), at.secs.rem_euclid(86_400));
    let (year, month, day) = civil(days);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02}", secs / 3600, secs / 60 % 60, secs % 60)
}

/// Year, month and day of a day counted from 1970-01-01 (proleptic Gregorian calendar). Years are counted from March,
/// so that the leap day is a year's last, in eras of 400 years of 146,097 days.
fn civil(days: i64) -> (i64, i64, i64) {
    const ERA_DAYS: i64 = 146_097;
    // Days from 0000-03-01 to 1970-01-01.
    let days = days + 719_468;
    let (era, of_era) = (days.div_euclid(ERA_DAYS), days.rem_euclid(ERA_DAYS));
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / (ERA_DAYS - 1)) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (year + era * 400 + i64::from(month <= 2), month, day)
}

/// A name as it can be shown on a terminal.
pub(crate) fn name(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.chars().any(char::is_control) => text.to_owned(),
        _ => bytes.escape_ascii().to_string(),
    }
}

/// A spinner that counts files, on terminals only.
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
    fn sizes_are_short() {
        for (bytes, text) in
            [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (10 << 20, "10 MiB"), (1 << 40, "1.0 TiB")]
        {
            assert_eq!(size(bytes), text);
        }
        assert_eq!(size(u64::MAX), "16 EiB");
    }

    #[test]
    fn times_follow_the_calendar() {
        for (secs, text) in [
            (0, "1970-01-01 00:00:00"),
            (951_782_400, "2000-02-29 00:00:00"),
            (-1, "1969-12-31 23:59:59"),
            (4_107_542_400, "2100-03-01 00:00:00"),
        ] {
            assert_eq!(time(Timestamp::new(secs, 0)), text);
        }
    }

    #[test]
    fn names_with_control_characters_are_escaped() {
        assert_eq!(name("gr\u{fc}n".as_bytes()), "grün");
        assert_eq!(name(b"a\x1bb"), "a\\x1bb");
        assert_eq!(name(b"\xff"), "\\xff");
    }
}
