//! Traces of disk requests: reading three formats as streams, and writing our own.
//!
//! | format | a line |
//! |---|---|
//! | [`Format::Moafs`] | one JSON object: what [`probe::trace`](moafs_disk::probe::trace) lists, with all it knows |
//! | [`Format::Blktrace`] | text of blkparse: `8,0 3 1 0.000000000 697 Q W 223490 + 8 [kjournald]` |
//! | [`Format::Csv`] | `time_s,op,sector,sectors` with op R, W or F (flush); a header line may come first |
//!
//! Invariants: a line is at most [`LINE_BYTES_MAX`] long and [`REORDER_MAX`] entries are held,
//! however long the trace is. Entries come out in order of time; those of equal time in the order
//! of the file. Errors name file, line and field.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::io::{self, BufRead, Read, Write};

use moafs_disk::model::{Command, Verb};
use moafs_disk::probe::trace::{Record, TraceVerb as Asked};
use moafs_disk::{Lba, Tag};
use moafs_runtime::Time;
use serde::{Deserialize, Serialize};

/// The longest line in bytes.
pub const LINE_BYTES_MAX: u64 = 64 << 10;
/// Most entries by which a line may come too late: tracers list by completion, or per processor.
pub const REORDER_MAX: usize = 1 << 16;
/// Latest time in a trace: 30 years. It keeps modelled time far from overflow.
const TIME_S_MAX: u64 = 1_000_000_000;
/// The longest request: 2^32 sectors are 2 TiB.
const SECTORS_MAX: u64 = 1 << 32;

/// The format of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// One JSON object per line.
    Moafs,
    /// The text output of blkparse.
    Blktrace,
    /// Lines of `time_s,op,sector,sectors`; a header line may come first.
    Csv,
}

/// The events of a blktrace that count as requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// `Q`: requests that were made to the block layer.
    Queued,
    /// `D`: requests that were sent to the device, after sorting and merging.
    Issued,
}

impl Event {
    /// Returns the letter that blkparse prints.
    pub fn letter(self) -> &'static str {
        match self {
            Event::Queued => "Q",
            Event::Issued => "D",
        }
    }
}

/// One request of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// Time of the request's arrival.
    pub time: Time,
    /// Command for the drive.
    pub command: Command,
    /// Number of its line in the file, from 1.
    pub line: u64,
}

/// An error of reading a trace.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// A line that cannot be understood.
    #[error("{file}, line {line}, {field}: {problem}")]
    Malformed {
        /// Name of the file.
        file: String,
        /// The line, from 1.
        line: u64,
        /// Name of the field.
        field: &'static str,
        /// Description of the error in the field.
        problem: String,
    },
    /// The file has no requests.
    #[error("{file}: {problem}")]
    Empty {
        /// Name of the file.
        file: String,
        /// Description of the problem.
        problem: String,
    },
    /// The file cannot be read.
    #[error("reading {file}: {error}")]
    Io {
        /// Name of the file.
        file: String,
        /// The operating system's error.
        error: io::Error,
    },
}

/// A record as a line of our own format.
#[derive(Debug, Serialize, Deserialize)]
struct Line {
    sequence: u64,
    time_ns: u64,
    op: Asked,
    sector: u64,
    sectors: u64,
    #[serde(default)]
    segments: usize,
    #[serde(default)]
    fua: bool,
    #[serde(default)]
    tag: Option<TagOf>,
    #[serde(default)]
    epoch: u64,
}

#[derive(Debug, Serialize, Deserialize)]
struct TagOf {
    kind: moafs_disk::Kind,
    owner: u64,
    cause: moafs_disk::Cause,
}

/// Writes records as a trace in our own format.
///
/// # Errors
/// Fails if `out` reports an error.
pub fn write(out: &mut impl Write, records: &[Record]) -> io::Result<()> {
    for record in records {
        let tag = |tag: Tag| TagOf { kind: tag.kind, owner: tag.owner, cause: tag.cause };
        let line = Line {
            sequence: record.sequence,
            time_ns: record.time.0,
            op: record.verb,
            sector: record.at.0,
            sectors: record.sectors,
            segments: record.segments,
            fua: record.fua,
            tag: record.tag.map(tag),
            epoch: record.epoch.0,
        };
        serde_json::to_writer(&mut *out, &line)?;
        out.write_all(b"\n")?;
    }
    Ok(())
}

/// The name of a field that is wrong, and the reason.
type Wrong = (&'static str, String);

/// The requests of a trace, in order of time.
pub struct Reader<R> {
    input: R,
    file: String,
    format: Option<Format>,
    event: Event,
    line: u64,
    /// Device of a blktrace.
    device: Option<String>,
    /// True once the text of a blktrace has reached its summary.
    ended_events: bool,
    /// Events of a blktrace by letter.
    events: BTreeMap<String, u64>,
    /// Entries that a later line may still precede.
    held: BinaryHeap<Reverse<(Time, u64, u64, Held)>>,
    entries: u64,
    last: Time,
    ended: bool,
}

/// A command that can be compared, last and without effect: line and number differ before it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Held(Verb, Lba, u64);

impl<R: BufRead> Reader<R> {
    /// Makes a reader of `input`; `file` is for messages. Without a format, the first line decides.
    pub fn new(input: R, file: &str, format: Option<Format>, event: Event) -> Reader<R> {
        Reader {
            input,
            file: file.to_owned(),
            format,
            event,
            line: 0,
            device: None,
            ended_events: false,
            events: BTreeMap::new(),
            held: BinaryHeap::new(),
            entries: 0,
            last: Time(0),
            ended: false,
        }
    }

    /// Makes an error about a field of a line.
    pub fn malformed(&self, line: u64, field: &'static str, problem: impl Into<String>) -> TraceError {
        TraceError::Malformed { file: self.file.clone(), line, field, problem: problem.into() }
    }

    fn read_line(&mut self, text: &mut String) -> Result<bool, TraceError> {
        text.clear();
        let mut bytes = Vec::new();
        let read = (&mut self.input).take(LINE_BYTES_MAX + 1).read_until(b'\n', &mut bytes);
        let read = read.map_err(|error| TraceError::Io { file: self.file.clone(), error })?;
        self.line += 1;
        if read as u64 > LINE_BYTES_MAX {
            return Err(self.malformed(self.line, "line", format!("longer than {LINE_BYTES_MAX} bytes")));
        }
        let line = std::str::from_utf8(&bytes).map_err(|_| self.malformed(self.line, "line", "not UTF-8 text"))?;
        text.push_str(line.trim());
        Ok(read > 0)
    }

    /// Reads one more line and holds its requests; at the end of the file, notes that.
    fn advance(&mut self) -> Result<(), TraceError> {
        let mut text = String::new();
        if !self.read_line(&mut text)? {
            self.ended = true;
            return if self.entries == 0 { Err(self.empty()) } else { Ok(()) };
        }
        if text.is_empty() || text.starts_with('#') {
            return Ok(());
        }
        let format = *self.format.get_or_insert_with(|| detect(&text));
        let parsed = match format {
            Format::Moafs => parse_own(&text),
            Format::Blktrace => self.parse_blktrace(&text),
            Format::Csv if self.entries == 0 && is_header(&text) => Ok(Vec::new()),
            Format::Csv => parse_csv(&text),
        };
        for (time, command) in parsed.map_err(|(field, problem)| self.malformed(self.line, field, problem))? {
            let sound = command.sectors <= SECTORS_MAX && (command.sectors > 0 || command.verb == Verb::Flush);
            if !sound {
                let problem = format!("must be from 1 to {SECTORS_MAX}, is {}", command.sectors);
                return Err(self.malformed(self.line, "sectors", problem));
            }
            if command.at.0.checked_add(command.sectors).is_none() {
                return Err(self.malformed(self.line, "sector", format!("{} is no sector of any disk", command.at.0)));
            }
            if time < self.last {
                let problem = format!("more than {REORDER_MAX} requests too late: sort the trace by time");
                return Err(self.malformed(self.line, "time", problem));
            }
            self.entries += 1;
            let held = Held(command.verb, command.at, command.sectors);
            self.held.push(Reverse((time, self.entries, self.line, held)));
        }
        Ok(())
    }

    fn empty(&self) -> TraceError {
        let seen: Vec<String> = self.events.iter().map(|(letter, count)| format!("{count} {letter}")).collect();
        let problem = match self.format {
            Some(Format::Blktrace) => {
                format!("no {} events of reads, writes or flushes; it has {}", self.event.letter(), seen.join(", "))
            }
            _ => "no requests".to_owned(),
        };
        TraceError::Empty { file: self.file.clone(), problem }
    }

    fn parse_blktrace(&mut self, text: &str) -> Result<Vec<(Time, Command)>, Wrong> {
        let fields: Vec<&str> = text.split_ascii_whitespace().take(10).collect();
        // Summaries at the end of the text: `CPU0 (8,0):`, `Total (8,0):` and indented lines.
        if !is_device(fields[0]) {
            let in_summary = self.ended_events || fields[0].starts_with("CPU") || fields[0] == "Total";
            self.ended_events = in_summary;
            let wrong = ("device", format!("`{}` is not MAJOR,MINOR", fields[0]));
            return if in_summary { Ok(Vec::new()) } else { Err(wrong) };
        }
        let field = |index: usize, name| fields.get(index).copied().ok_or((name, "missing".to_owned()));
        let action = field(5, "action")?;
        *self.events.entry(action.chars().take(2).collect()).or_default() += 1;
        if action != self.event.letter() {
            return Ok(Vec::new());
        }
        let device = self.device.get_or_insert_with(|| fields[0].to_owned());
        if device != fields[0] {
            let problem = format!("{} after {device}: only one device can be replayed", fields[0]);
            return Err(("device", problem));
        }
        let time = parse_seconds(field(3, "time")?).map_err(|problem| ("time", problem))?;
        let rwbs = field(6, "rwbs")?;
        let extent = match fields.get(7).filter(|text| text.bytes().all(|b| b.is_ascii_digit())) {
            Some(sector) => Some((parse_u64("sector", sector)?, parse_extent(&fields)?)),
            None => None,
        };
        Ok(commands_of(rwbs, extent)?.into_iter().map(|command| (time, command)).collect())
    }
}

impl<R: BufRead> Iterator for Reader<R> {
    type Item = Result<Entry, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.ended && self.held.len() <= REORDER_MAX {
            if let Err(error) = self.advance() {
                self.ended = true;
                self.held.clear();
                return Some(Err(error));
            }
        }
        let Reverse((time, _, line, Held(verb, at, sectors))) = self.held.pop()?;
        self.last = time;
        Some(Ok(Entry { time, command: Command { verb, at, sectors }, line }))
    }
}

fn detect(text: &str) -> Format {
    let first = text.split_ascii_whitespace().next().unwrap_or("");
    match text.starts_with('{') {
        true => Format::Moafs,
        false if is_device(first) && text.len() > first.len() => Format::Blktrace,
        false => Format::Csv,
    }
}

/// Returns true for text of the form `MAJOR,MINOR`.
fn is_device(text: &str) -> bool {
    let number = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    text.split_once(',').is_some_and(|(major, minor)| number(major) && number(minor))
}

fn parse_own(text: &str) -> Result<Vec<(Time, Command)>, Wrong> {
    let line: Line = serde_json::from_str(text).map_err(|error| ("object", error.to_string()))?;
    if line.time_ns > TIME_S_MAX * 1_000_000_000 {
        return Err(("time_ns", format!("must be at most {TIME_S_MAX} s")));
    }
    let verb = match line.op {
        Asked::Read => Verb::Read,
        Asked::Write if line.fua => Verb::WriteFua,
        Asked::Write | Asked::WriteZeroes => Verb::Write,
        Asked::Flush => return Ok(vec![(Time(line.time_ns), Command::flush())]),
        // A hard disk has no discard command.
        Asked::Discard => return Ok(Vec::new()),
    };
    Ok(vec![(Time(line.time_ns), Command { verb, at: Lba(line.sector), sectors: line.sectors })])
}

fn is_header(text: &str) -> bool {
    text.split(',').next().is_some_and(|field| field.trim().eq_ignore_ascii_case("time_s"))
}

fn parse_csv(text: &str) -> Result<Vec<(Time, Command)>, Wrong> {
    let mut fields = text.split(',').map(str::trim);
    let mut field = |name| fields.next().ok_or((name, "missing: a line is time_s,op,sector,sectors".to_owned()));
    let time = parse_seconds(field("time_s")?).map_err(|problem| ("time_s", problem))?;
    let verb = match field("op")? {
        "R" | "r" => Verb::Read,
        "W" | "w" => Verb::Write,
        "F" | "f" => return Ok(vec![(time, Command::flush())]),
        other => return Err(("op", format!("`{other}` is not R, W or F"))),
    };
    let at = Lba(parse_u64("sector", field("sector")?)?);
    let sectors = parse_u64("sectors", field("sectors")?)?;
    match fields.next() {
        Some(extra) => Err(("line", format!("`{extra}` behind the last field: a line is time_s,op,sector,sectors"))),
        None => Ok(vec![(time, Command { verb, at, sectors })]),
    }
}

/// Parses the sectors of a blktrace line: `SECTOR + SECTORS`.
fn parse_extent(fields: &[&str]) -> Result<u64, Wrong> {
    match (fields.get(8), fields.get(9)) {
        (Some(&"+"), Some(sectors)) => parse_u64("sectors", sectors),
        _ => Err(("sectors", "no `+ SECTORS` behind the sector".to_owned())),
    }
}

/// Returns the commands that blkparse's letters stand for: a flush before (`F` in front), then read
/// or write, forced to the media with an `F` behind.
fn commands_of(rwbs: &str, extent: Option<(u64, u64)>) -> Result<Vec<Command>, Wrong> {
    let flush = rwbs.starts_with('F');
    let rest = rwbs.strip_prefix('F').unwrap_or(rwbs);
    let mut commands = Vec::new();
    if flush {
        commands.push(Command::flush());
    }
    let verb = match rest.chars().next() {
        Some('R') => Verb::Read,
        Some('W') if rest.contains('F') => Verb::WriteFua,
        Some('W') => Verb::Write,
        // Discards; commands that are neither read nor write; a flush alone.
        Some('D' | 'N') | None => return Ok(commands),
        Some(_) => return Err(("rwbs", format!("`{rwbs}` has neither R, W, D, N nor F"))),
    };
    match extent {
        Some((_, 0)) if flush => {}
        Some((at, sectors)) => commands.push(Command { verb, at: Lba(at), sectors }),
        // `FWS` without a sector is how an empty flush is traced.
        None if flush => {}
        None => return Err(("sector", "missing".to_owned())),
    }
    Ok(commands)
}

fn parse_u64(field: &'static str, text: &str) -> Result<u64, Wrong> {
    text.parse().map_err(|_| (field, format!("`{text}` is not a whole number")))
}

/// Parses seconds as whole nanoseconds: exact for decimals; numbers with an exponent go through
/// floating point.
fn parse_seconds(text: &str) -> Result<Time, String> {
    let wrong = || format!("`{text}` is not a time in seconds from 0 to {TIME_S_MAX}");
    let digits = |part: &str| part.bytes().all(|b| b.is_ascii_digit());
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    if !digits(whole) || !digits(fraction) {
        let seconds: f64 = text.parse().map_err(|_| wrong())?;
        let in_range = (0.0..=TIME_S_MAX as f64).contains(&seconds) && text.contains(['e', 'E']);
        return if in_range { Ok(Time((seconds * 1e9).round() as u64)) } else { Err(wrong()) };
    }
    if whole.is_empty() && fraction.is_empty() {
        return Err(wrong());
    }
    let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().map_err(|_| wrong())? };
    if whole >= TIME_S_MAX {
        return Err(wrong());
    }
    let digit = |place: usize| u64::from(fraction.as_bytes().get(place).map_or(0, |b| b - b'0'));
    let nanos = (0..9).fold(0, |ns, place| ns * 10 + digit(place));
    Ok(Time(whole * 1_000_000_000 + nanos + u64::from(digit(9) >= 5)))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use moafs_disk::probe::trace::Trace;
    use moafs_disk::{Buf, Cause, DiskExt, Kind, MemDisk};
    use moafs_runtime::Live;

    use super::*;

    fn read(text: &str) -> Result<Vec<Entry>, TraceError> {
        Reader::new(text.as_bytes(), "t", None, Event::Queued).collect()
    }

    fn commands(text: &str) -> Vec<(u64, Command)> {
        read(text).unwrap_or_else(|e| panic!("{e}")).iter().map(|e| (e.time.0, e.command)).collect()
    }

    #[test]
    fn csv_has_reads_writes_and_flushes() {
        let text = "time_s,op,sector,sectors\n0,R,8,8\n# a comment\n0.060123,W,16,256\n\n1e-1,F,,\n.5,F,0,0\n";
        let expected = [
            (0, Command::read(8, 8)),
            (60_123_000, Command::write(16, 256)),
            (100_000_000, Command::flush()),
            (500_000_000, Command::flush()),
        ];
        assert_eq!(commands(text), expected);
    }

    #[test]
    fn blktrace_text_is_read_up_to_its_summary() {
        let text = "\
  8,0    3        1     0.000000000   697  Q   W 223490 + 8 [kjournald]
  8,0    3        2     0.000001000   697  G   W 223490 + 8 [kjournald]
  8,0    3        3     0.000002000   697  P   N [kjournald]
  8,0    3        4     0.000003000   697  D   W 223490 + 8 [kjournald]
  8,0    1        0     0.000004000     0  m   N cfq697S / activate
  8,0    1        5     0.500000000   698  Q  RA 1000 + 256 [cat]
  8,0    1        6     0.600000000   699  Q FWS [jbd2/sda1-8]
  8,0    1        7     0.700000000   699  Q FWFS 2000 + 8 [jbd2/sda1-8]
  8,0    1        8     0.800000000   699  Q   D 2000 + 8 [fstrim]
CPU0 (8,0):
 Reads Queued:           1,      128KiB\t Writes Queued:           2,        8KiB
Total (8,0):
 Reads Queued:           1,      128KiB

Throughput (R/W): 21KiB/s / 0KiB/s
";
        let forced = Command { verb: Verb::WriteFua, ..Command::write(2000, 8) };
        let expected = [
            (0, Command::write(223_490, 8)),
            (500_000_000, Command::read(1000, 256)),
            (600_000_000, Command::flush()),
            (700_000_000, Command::flush()),
            (700_000_000, forced),
        ];
        assert_eq!(commands(text), expected);
        let issued: Vec<Entry> =
            Reader::new(text.as_bytes(), "t", None, Event::Issued).collect::<Result<_, _>>().unwrap();
        assert_eq!((issued.len(), issued[0].command, issued[0].line), (1, Command::write(223_490, 8), 4));
    }

    #[test]
    fn what_a_probe_listed_comes_back() {
        let disk = Trace::new(Arc::new(MemDisk::new(64)), Live::new());
        disk.record(10);
        let tag = Tag::new(Kind::Bitmap, 7, Cause::Demand);
        disk.write(Lba(8), Buf::zeroed(1024).freeze(), tag).unwrap();
        disk.read(Lba(0), 512, tag).unwrap();
        disk.flush().unwrap();
        let mut text = Vec::new();
        write(&mut text, &disk.take()).unwrap();
        let text = String::from_utf8(text).unwrap();
        let commands: Vec<Command> = commands(&text).into_iter().map(|(_, command)| command).collect();
        assert_eq!(commands, [Command::write(8, 2), Command::read(0, 1), Command::flush()]);
    }

    #[test]
    fn entries_come_in_order_of_time() {
        let times: Vec<u64> = commands("3,R,0,1\n1,R,1,1\n2,R,2,1\n1,R,3,1\n").iter().map(|(_, c)| c.at.0).collect();
        assert_eq!(times, [1, 3, 2, 0]);
    }

    #[test]
    fn a_line_that_is_far_too_late_is_told() {
        let mut text: String = (0..REORDER_MAX + 2).map(|i| format!("{},R,0,1\n", i + 1)).collect();
        text.push_str("0.5,R,0,1\n");
        let error = read(&text).unwrap_err().to_string();
        assert!(error.contains(&format!("line {}, time: more than", REORDER_MAX + 3)), "{error}");
    }

    #[test]
    fn errors_name_file_line_and_field() {
        for (text, expected) in [
            ("0,R,8\n", "t, line 1, sectors: missing"),
            ("0,R,8,8\n0,X,8,8\n", "t, line 2, op: `X` is not R, W or F"),
            ("zero,R,8,8\n", "t, line 1, time_s: `zero` is not a time"),
            ("-1,R,8,8\n", "t, line 1, time_s: "),
            ("nan,R,8,8\n", "t, line 1, time_s: "),
            ("99999999999999999999,R,8,8\n", "t, line 1, time_s: "),
            ("0,R,8,0\n", "t, line 1, sectors: must be from 1"),
            ("0,R,18446744073709551615,8\n", "t, line 1, sector: "),
            ("0,R,8,8,9\n", "t, line 1, line: `9` behind"),
            ("{\"sequence\":0}\n", "t, line 1, object: missing field `time_ns`"),
            ("8,0 1 1 0.1 5 Q W x + 8 [a]\n", "t, line 1, sector: missing"),
            ("8,0 1 1 0.1 5 Q W 8 8 [a]\n", "t, line 1, sectors: no `+ SECTORS`"),
            ("8,0 1 1\n", "t, line 1, action: missing"),
            ("8,0 1 1 0.1 5 Q W 8 + 8\n8,16 1 1 0.1 5 Q W 8 + 8\n", "t, line 2, device: 8,16 after 8,0"),
            ("8,0 1 1 0.1 5 C W 8 + 8\n", "t: no Q events of reads, writes or flushes; it has 1 C"),
            ("", "t: no requests"),
        ] {
            let error = read(text).expect_err(text).to_string();
            assert!(error.starts_with(expected), "{text:?}: {error}");
        }
    }

    #[test]
    fn a_line_without_end_is_refused() {
        let error = read(&"0".repeat(1 << 20)).unwrap_err().to_string();
        assert!(error.contains("line 1, line: longer than"), "{error}");
        let bytes: &[u8] = b"\xff\xfe\n";
        let error = Reader::new(bytes, "t", None, Event::Queued).next().unwrap().unwrap_err();
        assert!(error.to_string().contains("not UTF-8"), "{error}");
    }
}
