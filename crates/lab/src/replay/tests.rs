//! The reference traces of `docs/models.md`, as CSV, on the drives.

use std::fmt::Write as _;

use super::*;
use crate::trace::Event;

const REQUESTS: u64 = 5_000;
const DRIVES: [&str; 4] = ["mpg3307at", "mpg3307at-as-published", "st3160812as", "hds721616pla380"];

/// The generator of the reference traces.
struct SplitMix64(u64);

impl SplitMix64 {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn lbn(&mut self, cap: u64, align: u64) -> u64 {
        self.next() % (cap / align) * align
    }
}

fn csv(lines: impl Iterator<Item = (u64, char, u64, u64)>) -> String {
    let mut text = String::from("time_s,op,sector,sectors\n");
    for (time_us, op, sector, sectors) in lines {
        writeln!(text, "{}.{:06},{op},{sector},{sectors}", time_us / 1_000_000, time_us % 1_000_000).unwrap();
    }
    text
}

/// Makes T1o (`open`) or T1c.
fn t1(cap: u64, open: bool) -> String {
    let mut random = SplitMix64(1);
    csv((0..REQUESTS).map(|i| {
        let lbn = random.lbn(cap, 8);
        let jitter_us = random.next() % 20_000;
        (if open { 60_000 * i + jitter_us } else { 0 }, 'R', lbn, 8)
    }))
}

fn t2a() -> String {
    csv((0..REQUESTS).map(|i| (0, 'W', 256 * i, 256)))
}

/// Makes T3 (`sorted` in batches of 32) or T3f.
fn t3(cap: u64, sorted: bool) -> String {
    let mut random = SplitMix64(3);
    let mut lbns: Vec<u64> = (0..REQUESTS).map(|_| random.lbn(cap, 8)).collect();
    if sorted {
        lbns.chunks_mut(32).for_each(<[u64]>::sort_unstable);
    }
    csv(lbns.into_iter().map(|lbn| (0, 'W', lbn, 8)))
}

fn t4(cap: u64) -> String {
    let mut random = SplitMix64(4);
    csv((0..REQUESTS).map(|_| (0, 'W', random.lbn(cap, 256), 256)))
}

fn t6(cap: u64) -> String {
    let mut random = SplitMix64(6);
    csv((0..156 * 32).map(|i| (i / 32 * 1_000_000, 'R', random.lbn(cap, 8), 8)))
}

fn t7(cap: u64) -> String {
    let mut random = SplitMix64(3);
    csv((0..REQUESTS).map(|i| {
        let jitter_us = random.next() % 20_000;
        (60_000 * i + jitter_us, 'W', random.lbn(cap, 8), 8)
    }))
}

fn spec(name: &str, settings: &[(&str, &str)]) -> DriveSpec {
    let mut spec = DriveSpec::preset(name).unwrap();
    settings.iter().for_each(|(parameter, value)| spec.set(parameter, value).unwrap());
    spec
}

fn bare(name: &str) -> DriveSpec {
    spec(name, &[("cache", "off"), ("bus_mb_s", "inf")])
}

fn run(spec: &DriveSpec, policy: Policy, text: &str) -> Summary {
    let summary = replay(spec, policy, Reader::new(text.as_bytes(), "t", None, Event::Queued)).unwrap();
    let parts = summary.mean_overhead_ms
        + summary.mean_wait_ms
        + summary.mean_gc_ms
        + summary.mean_seek_ms
        + summary.mean_rotation_ms
        + summary.mean_transfer_ms
        + summary.mean_bus_ms;
    assert!((parts - summary.mean_service_ms).abs() < 1e-6, "{summary:?}");
    assert!((summary.mean_queue_ms + summary.mean_service_ms - summary.mean_response_ms).abs() < 1e-6, "{summary:?}");
    summary
}

#[track_caller]
fn assert_near(what: &str, is: f64, expected: f64, tolerance: f64) {
    assert!((is - expected).abs() <= tolerance, "{what}: {is:.4}, expected {expected} within {tolerance}");
}

#[test]
fn closed_loop_traces_take_what_the_reference_runs_took() {
    let expected = [
        [15.451, 16.455, 11.080, 21.470, 15.372],
        [13.495, 14.460, 9.483, 18.382, 11.591],
        [15.366, 16.347, 9.725, 18.549, 10.032],
        [12.860, 13.865, 9.915, 16.047, 10.056],
    ];
    for (name, expected) in DRIVES.into_iter().zip(expected) {
        let spec = bare(name);
        let cap = spec.sectors();
        for (text, expected) in [t1(cap, false), t3(cap, false), t3(cap, true), t4(cap), t2a()].iter().zip(expected) {
            let summary = run(&spec, Policy::Fcfs, text);
            assert_eq!(summary.requests, REQUESTS);
            assert_near(name, summary.mean_service_ms, expected, 0.01);
            assert_near(name, summary.total_ms, expected * REQUESTS as f64, 50.0);
        }
    }
}

#[test]
fn open_traces_never_queue_and_take_as_long() {
    // The same addresses as in the closed loop; only the rotational position at the start differs.
    for (name, read, write) in [("st3160812as", 15.366, 16.347), ("hds721616pla380", 12.860, 13.865)] {
        let spec = bare(name);
        let summary = run(&spec, Policy::Fcfs, &t1(spec.sectors(), true));
        assert_eq!(summary.mean_queue_ms, 0.0);
        assert_near(name, summary.mean_service_ms, read, 0.2);
        assert!(summary.idle_ms > 200_000.0);
        let summary = run(&spec, Policy::Clook, &t7(spec.sectors()));
        assert_near(name, summary.mean_response_ms, write, 0.2);
    }
}

#[test]
fn bursts_are_served_sooner_when_sorted_and_soonest_by_positioning_time() {
    let spec = bare("st3160812as");
    let text = t6(spec.sectors());
    let [fcfs, clook, sptf] = [Policy::Fcfs, Policy::Clook, Policy::Sptf].map(|policy| run(&spec, policy, &text));
    assert!(fcfs.mean_response_ms > clook.mean_response_ms, "{fcfs:?}\n{clook:?}");
    assert!(clook.mean_response_ms > sptf.mean_response_ms, "{clook:?}\n{sptf:?}");
    assert!(clook.mean_seek_ms < fcfs.mean_seek_ms);
    assert!(sptf.mean_rotation_ms < clook.mean_rotation_ms);
    // With the queue in the drive instead of the host it is the same choice.
    let mut spec = spec;
    spec.set("ncq_depth", "32").unwrap();
    let ncq = run(&spec, Policy::Fcfs, &text);
    assert_near("ncq", ncq.mean_response_ms, sptf.mean_response_ms, sptf.mean_response_ms * 0.02);
}

#[test]
fn the_reference_drive_seeks_rotates_and_transfers() {
    let spec = spec("c9m", &[]);
    let summary = run(&spec, Policy::Fcfs, &t1(17_783_232, false));
    assert_eq!(summary.mean_overhead_ms + summary.mean_wait_ms + summary.mean_bus_ms, 0.0);
    assert_near("rotation", summary.mean_rotation_ms, 2.987, 0.06);
    assert!(summary.seeks > 4_990, "{summary:?}");
    // A third of the drive, as between two random points.
    assert_near("distance", summary.mean_seek_sectors / 17_783_232.0, 0.333, 0.01);
    assert!((1.0..3.0).contains(&summary.stddev_service_ms), "{summary:?}");
}

#[test]
fn flushes_are_barriers_and_counted_apart() {
    let spec = spec("mpg3307at", &[]);
    let text = "0,W,1000000,8\n0,F,,\n0,R,50000000,8\n0,R,100,8\n";
    let summary = run(&spec, Policy::Clook, text);
    assert_eq!((summary.requests, summary.flushes, summary.writes), (3, 1, 1));
    assert!(summary.mean_queue_ms > 5.0, "the reads waited for the flush: {summary:?}");
}

#[test]
fn a_request_beyond_the_drive_is_told_with_its_line() {
    let text = "0,R,0,8\n0,R,17930561,8\n";
    let reader = Reader::new(text.as_bytes(), "my.csv", None, Event::Queued);
    let error = replay(&spec("c9m", &[]), Policy::Fcfs, reader).unwrap_err().to_string();
    assert_eq!(error, "my.csv, line 2, sector: 17930561 + 8 goes beyond the drive's 17930568 sectors");
}
