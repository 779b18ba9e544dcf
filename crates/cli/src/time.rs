//! Times: as people read them, as JSON has them, and as they are typed.
//!
//! People get the local zone, and see which it is; JSON has UTC (RFC 3339) with nanoseconds. A volume may hold times
//! that no calendar has, since its seconds are 64 bits: those are shown as `@SECONDS`.

use std::fmt;
use std::str::FromStr;

use jiff::civil::DateTime;
use jiff::fmt::{rfc2822, strtime};
use jiff::tz::TimeZone;
use jiff::{Span, Zoned};
use moafs_runtime::Timestamp;
use serde::{Serialize, Serializer};

/// Formats of dates besides those of ISO 8601, RFC 3339 and RFC 2822: what listings of moafs and coreutils show.
const WITH_ZONE: [&str; 3] = ["%Y-%m-%d %H:%M:%S%.f %z", "%Y-%m-%d %H:%M:%S%.f %:z", "%Y-%m-%d %H:%M %z"];

/// Formats a time for people: local time with its zone.
pub(crate) fn local(at: Timestamp) -> String {
    TimeStyle::Zoned.show(at)
}

/// Formats a time for JSON: RFC 3339 in UTC with nanoseconds.
pub(crate) fn rfc3339(at: Timestamp) -> String {
    in_calendar(at).map_or_else(|| by_seconds(at), |at| format!("{at:.9}"))
}

/// A time in a report: local time for people, RFC 3339 as JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reported(pub(crate) Timestamp);

impl fmt::Display for Reported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&local(self.0))
    }
}

impl Serialize for Reported {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&rfc3339(self.0))
    }
}

/// Returns a time in the years that four digits can write.
fn in_calendar(at: Timestamp) -> Option<jiff::Timestamp> {
    // From 0000-01-01 on.
    const FIRST_SECOND: i64 = -62_167_219_200;
    let nanos = i32::try_from(at.nanos).ok()?;
    jiff::Timestamp::new(at.secs, nanos).ok().filter(|_| at.secs >= FIRST_SECOND)
}

fn by_seconds(at: Timestamp) -> String {
    format!("@{}", at.secs)
}

/// The form in which times are shown, with the names that `ls --time-style` has for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TimeStyle {
    /// To the second, with the zone.
    Zoned,
    /// `full-iso`: to the nanosecond, with the zone.
    Full,
    /// `long-iso`: to the minute.
    Long,
    /// `iso`: the date.
    Iso,
    /// `+FORMAT`, as date(1) has it.
    Format(String),
}

impl TimeStyle {
    /// Formats a time in the local zone.
    pub(crate) fn show(&self, at: Timestamp) -> String {
        let Some(time) = in_calendar(at) else { return by_seconds(at) };
        let time = time.to_zoned(TimeZone::system());
        strtime::format(self.format(), &time).unwrap_or_else(|_| by_seconds(at))
    }

    fn format(&self) -> &str {
        match self {
            TimeStyle::Zoned => "%Y-%m-%d %H:%M:%S %z",
            TimeStyle::Full => "%Y-%m-%d %H:%M:%S.%9f %z",
            TimeStyle::Long => "%Y-%m-%d %H:%M",
            TimeStyle::Iso => "%Y-%m-%d",
            TimeStyle::Format(format) => format,
        }
    }
}

impl FromStr for TimeStyle {
    type Err = String;

    fn from_str(text: &str) -> Result<TimeStyle, String> {
        Ok(match text {
            "zoned" => TimeStyle::Zoned,
            "full-iso" => TimeStyle::Full,
            "long-iso" => TimeStyle::Long,
            "iso" => TimeStyle::Iso,
            _ => match text.strip_prefix('+') {
                Some(format) => {
                    strtime::format(format, &Zoned::now()).map_err(|error| error.to_string())?;
                    TimeStyle::Format(format.to_owned())
                }
                None => return Err("give zoned, full-iso, long-iso, iso, or +FORMAT as date(1) has it".to_owned()),
            },
        })
    }
}

/// Parses a date as it is typed: ISO 8601 (local time if it has no zone), RFC 3339, RFC 2822, `@SECONDS`, `now`, or a
/// span such as `2 days ago`.
pub(crate) fn parse(text: &str) -> Result<Timestamp, String> {
    let text = text.trim();
    let time = of_seconds(text).or_else(|| in_zone(text)).or_else(|| local_time(text)).or_else(|| from_now(text));
    let time =
        time.ok_or("give a date such as 2026-03-01, '2026-03-01 12:30:00', 2026-03-01T12:30:00Z or @1772368200")?;
    Ok(of_calendar(time))
}

/// Parses `[[CC]YY]MMDDhhmm[.ss]`, as touch(1) has it: local time, of this year if it names none.
pub(crate) fn parse_stamp(text: &str) -> Result<Timestamp, String> {
    stamp(text).map(of_calendar).ok_or_else(|| "give [[CC]YY]MMDDhhmm[.ss], such as 202603011230.00".to_owned())
}

fn stamp(text: &str) -> Option<jiff::Timestamp> {
    let (digits, secs) = text.split_once('.').unwrap_or((text, "00"));
    if !digits.bytes().chain(secs.bytes()).all(|byte| byte.is_ascii_digit()) || secs.len() != 2 {
        return None;
    }
    let (year, rest) = digits.split_at_checked(digits.len().checked_sub(8)?)?;
    let year: i16 = match year.len() {
        0 => Zoned::now().year(),
        // As POSIX has it: 69 to 99 are of the last century.
        2 => year.parse().map(|year: i16| if year < 69 { 2000 + year } else { 1900 + year }).ok()?,
        4 => year.parse().ok()?,
        _ => return None,
    };
    let field = |at: usize| rest.get(at..at + 2)?.parse::<i8>().ok();
    // A leap second is the first one of the next minute.
    let (secs, leap): (i8, i64) = if secs == "60" { (59, 1) } else { (secs.parse().ok()?, 0) };
    let time = DateTime::new(year, field(0)?, field(2)?, field(4)?, field(6)?, secs, 0).ok()?;
    let time = time.to_zoned(TimeZone::system()).ok()?.timestamp();
    time.checked_add(Span::new().seconds(leap)).ok()
}

/// Returns a time as volumes have it.
fn of_calendar(time: jiff::Timestamp) -> Timestamp {
    let nanos = time.subsec_nanosecond();
    // A time before 1970 has nanoseconds that count down from its second; here they count up.
    let borrows = nanos < 0;
    let secs = time.as_second() - i64::from(borrows);
    let nanos = if borrows { nanos + 1_000_000_000 } else { nanos };
    Timestamp::new(secs, nanos.unsigned_abs())
}

/// Parses `@SECONDS` since 1970, with an optional fraction.
fn of_seconds(text: &str) -> Option<jiff::Timestamp> {
    let digits = text.strip_prefix('@')?;
    let (secs, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    if fraction.len() > 9 || !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let nanos: i32 = format!("{fraction:0<9}").parse().ok()?;
    let nanos = if secs.starts_with('-') { -nanos } else { nanos };
    jiff::Timestamp::new(secs.parse().ok()?, nanos).ok()
}

/// Parses a date that names its zone.
fn in_zone(text: &str) -> Option<jiff::Timestamp> {
    let as_listed = |format: &&str| strtime::parse(format, text).ok()?.to_timestamp().ok();
    let iso = text.parse::<jiff::Timestamp>().ok();
    let named = || text.parse::<Zoned>().ok().map(|time| time.timestamp());
    let mail = || rfc2822::parse(text).ok().map(|time| time.timestamp());
    iso.or_else(named).or_else(mail).or_else(|| WITH_ZONE.iter().find_map(as_listed))
}

/// Parses a date in the local zone.
fn local_time(text: &str) -> Option<jiff::Timestamp> {
    let time: DateTime = text.parse().ok()?;
    time.to_zoned(TimeZone::system()).ok().map(|time| time.timestamp())
}

/// Parses `now`, and a span from now.
fn from_now(text: &str) -> Option<jiff::Timestamp> {
    let now = Zoned::now();
    if text == "now" {
        return Some(now.timestamp());
    }
    let span: Span = text.parse().ok()?;
    now.checked_add(span).ok().map(|time| time.timestamp())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_has_utc_with_nanoseconds() {
        for (secs, nanos, text) in [
            (0, 0, "1970-01-01T00:00:00.000000000Z"),
            (951_782_400, 5, "2000-02-29T00:00:00.000000005Z"),
            (-1, 999_999_999, "1969-12-31T23:59:59.999999999Z"),
            (253_402_207_200, 0, "9999-12-30T22:00:00.000000000Z"),
            (i64::MAX, 0, "@9223372036854775807"),
            (i64::MIN, 0, "@-9223372036854775808"),
        ] {
            assert_eq!(rfc3339(Timestamp::new(secs, nanos)), text);
        }
    }

    #[test]
    fn dates_are_read_as_they_are_shown() {
        for (secs, nanos) in [(0, 0), (1_772_368_200, 123_456_789), (-1, 999_999_999), (-86_401, 1)] {
            let at = Timestamp::new(secs, nanos);
            assert_eq!(parse(&rfc3339(at)), Ok(at));
            assert_eq!(parse(&TimeStyle::Full.show(at)), Ok(at));
            assert_eq!(parse(&local(at)), Ok(Timestamp::new(secs, 0)));
        }
    }

    #[test]
    fn dates_are_read_as_people_write_them() {
        let utc = |text: &str| parse(text).map(|at| at.secs);
        assert_eq!(utc("@1772368200"), Ok(1_772_368_200));
        assert_eq!(parse("@-1.5"), Ok(Timestamp::new(-2, 500_000_000)));
        assert_eq!(utc("2026-03-01T12:30:00Z"), Ok(1_772_368_200));
        assert_eq!(utc("2026-03-01T13:30:00+01:00"), Ok(1_772_368_200));
        assert_eq!(utc("2026-03-01 13:30:00 +0100"), Ok(1_772_368_200));
        assert_eq!(utc("2026-03-01 13:30 +0100"), Ok(1_772_368_200));
        assert_eq!(utc("Sun, 01 Mar 2026 12:30:00 +0000"), Ok(1_772_368_200));
        let (ago, now) = (utc("2 days ago").unwrap(), utc("now").unwrap());
        assert!((now - ago - 2 * 86_400).abs() <= 2 * 3600, "{now} {ago}");
        for text in ["2026-03-01", "2026-03-01 12:30", "2026-03-01T12:30:00"] {
            assert!(parse(text).is_ok(), "{text}");
        }
        for text in ["", "@", "soon", "2026-13-01", "2026-02-30", "12:30", "1234567890", "@1.1234567890"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn stamps_are_read_as_touch_reads_them() {
        let stamp = |text: &str| parse_stamp(text).map(|at| TimeStyle::Format("%Y%m%d%H%M.%S".to_owned()).show(at));
        assert_eq!(stamp("202603011230.59"), Ok("202603011230.59".to_owned()));
        assert_eq!(stamp("2603011230"), Ok("202603011230.00".to_owned()));
        assert_eq!(stamp("6901010000"), Ok("196901010000.00".to_owned()));
        assert_eq!(stamp("202603011230.60"), Ok("202603011231.00".to_owned()));
        assert_eq!(stamp("03011230").map(|text| text[4..].to_owned()), Ok("03011230.00".to_owned()));
        for text in
            ["", "1230", "3011230", "202613011230", "202602301230", "202603012460", "202603011230.5", "2026-0301"]
        {
            assert!(stamp(text).is_err(), "{text}");
        }
    }

    #[test]
    fn styles_have_the_names_that_ls_has() {
        let at = Timestamp::new(1_772_368_200, 0);
        let len = |style: &str| style.parse::<TimeStyle>().map(|style| style.show(at).len());
        assert_eq!((len("full-iso"), len("long-iso"), len("iso")), (Ok(35), Ok(16), Ok(10)));
        assert_eq!(len("+%Y"), Ok(4));
        assert!(len("locale").is_err() && len("+%").is_err());
    }
}
