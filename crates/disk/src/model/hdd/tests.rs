//! The hard disk model against the analytic and reference values of `docs/models.md`.

use moafs_runtime::Time;

use super::super::Drive;
use super::super::flash::precondition::SplitMix64;
use super::super::queue::{DriveQueue, HostQueue, Policy};
use super::super::service::{Command, Service, Verb};
use super::super::spec::DriveSpec;
use super::spec::tests::preset;

const REQUESTS: u64 = 5_000;
const DRIVES: [&str; 4] = ["mpg3307at", "mpg3307at-as-published", "st3160812as", "hds721616pla380"];

fn spec(name: &str, settings: &[(&str, &str)]) -> DriveSpec {
    let mut spec = DriveSpec::preset(name).unwrap();
    for (parameter, value) in settings {
        spec.set(parameter, value).unwrap_or_else(|error| panic!("{error}"));
    }
    spec
}

/// Makes the drive of the reference values: no buffer, no bus.
fn bare(name: &str) -> DriveSpec {
    spec(name, &[("cache", "off"), ("bus_mb_s", "inf")])
}

/// Draws the addresses of workload T1: one draw for the address, one for the jitter.
fn t1(cap: u64) -> Vec<u64> {
    let mut random = SplitMix64(1);
    let lbn = |_| {
        let lbn = random.next() % (cap / 8) * 8;
        random.next();
        lbn
    };
    (0..REQUESTS).map(lbn).collect()
}

fn drawn(seed: u64, cap: u64, align: u64) -> Vec<u64> {
    let mut random = SplitMix64(seed);
    (0..REQUESTS).map(|_| random.next() % (cap / align) * align).collect()
}

fn sorted_batches(mut lbns: Vec<u64>) -> Vec<u64> {
    lbns.chunks_mut(32).for_each(<[u64]>::sort_unstable);
    lbns
}

fn sequential(first: u64) -> Vec<u64> {
    (0..REQUESTS).map(|i| first + 256 * i).collect()
}

/// Serves one command after the other, each at the end of the one before.
fn closed_loop(spec: &DriveSpec, verb: Verb, lbns: &[u64], sectors: u64) -> Vec<Service> {
    let mut drive = Drive::new(spec).unwrap();
    let serve = |lbn: &u64| {
        let command = Command { verb, at: crate::Lba(*lbn), sectors };
        let service = drive.execute(drive.free_at(), command);
        let parts = service.overhead_ns + service.wait_ns + service.seek_ns + service.rotation_ns;
        assert_eq!(parts + service.transfer_ns + service.bus_ns, service.service_ns());
        service
    };
    lbns.iter().map(serve).collect()
}

fn mean_ms(services: &[Service]) -> f64 {
    services.iter().map(Service::service_ns).sum::<u64>() as f64 / 1e6 / services.len() as f64
}

fn rate_mb_s(services: &[Service], sectors: u64) -> f64 {
    sectors as f64 * 512.0 / 1000.0 / mean_ms(services)
}

#[track_caller]
fn assert_near(what: &str, is: f64, expected: f64, tolerance: f64) {
    assert!((is - expected).abs() <= tolerance, "{what}: {is:.4}, expected {expected} within {tolerance}");
}

#[test]
fn random_accesses_take_what_the_reference_runs_took() {
    let read_4k = [15.451, 13.495, 15.366, 12.860];
    let write_4k = [16.455, 14.460, 16.347, 13.865];
    let read_128k = [20.465, 17.396, 17.565, 15.071];
    let write_128k = [21.470, 18.382, 18.549, 16.047];
    let write_sorted = [11.080, 9.483, 9.725, 9.915];
    for (i, name) in DRIVES.into_iter().enumerate() {
        let spec = bare(name);
        let cap = spec.sectors();
        let run = |verb, lbns: &[u64], sectors| mean_ms(&closed_loop(&spec, verb, lbns, sectors));
        assert_near(name, run(Verb::Read, &t1(cap), 8), read_4k[i], 0.01);
        assert_near(name, run(Verb::Write, &drawn(3, cap, 8), 8), write_4k[i], 0.01);
        assert_near(name, run(Verb::Write, &sorted_batches(drawn(3, cap, 8)), 8), write_sorted[i], 0.01);
        assert_near(name, run(Verb::Read, &drawn(4, cap, 256), 256), read_128k[i], 0.01);
        assert_near(name, run(Verb::Write, &drawn(4, cap, 256), 256), write_128k[i], 0.01);
    }
}

#[test]
fn random_reads_have_the_percentiles_of_the_reference_run() {
    for (name, expected) in DRIVES.into_iter().zip([
        [15.53, 23.14, 25.83],
        [13.36, 20.56, 22.94],
        [15.40, 23.23, 26.11],
        [12.85, 18.66, 20.78],
    ]) {
        let spec = bare(name);
        let mut services = closed_loop(&spec, Verb::Read, &t1(spec.sectors()), 8);
        services.sort_by_key(Service::service_ns);
        for (percent, expected) in [50, 95, 99].into_iter().zip(expected) {
            let ms = services[services.len() * percent / 100].service_ns() as f64 / 1e6;
            assert_near(name, ms, expected, 0.02);
        }
    }
}

#[test]
fn other_random_numbers_give_the_analytic_mean() {
    // Overhead + E[seek] + half a rotation + eight sectors + crossings, as docs/models.md derives it.
    for (name, analytic) in DRIVES.into_iter().zip([15.421, 13.495, 15.279, 12.905]) {
        let spec = bare(name);
        let mean = mean_ms(&closed_loop(&spec, Verb::Read, &drawn(20_261_121, spec.sectors(), 8), 8));
        assert_near(name, mean, analytic, 0.2);
    }
}

#[test]
fn sequential_transfers_run_at_the_sustained_rate() {
    let rates = [(30.76, 18.20), (40.24, 23.80), (77.16, 36.60), (76.08, 37.33)];
    for (name, (outer, inner)) in DRIVES.into_iter().zip(rates) {
        let mut spec = bare(name);
        spec.set("overhead_ms", "0").unwrap();
        let rate = |first| rate_mb_s(&closed_loop(&spec, Verb::Write, &sequential(first), 256), 256);
        assert_near(name, rate(0), outer, 0.01);
        assert_near(name, rate((spec.sectors() / 256 - REQUESTS) * 256), inner, 0.01);
    }
}

#[test]
fn sustained_rates_follow_the_closed_form() {
    for name in DRIVES {
        let mut spec = bare(name);
        spec.set("overhead_ms", "0").unwrap();
        let drive = preset(name);
        let zone = &drive.zone_table()[0];
        let (heads, spt, rev) = (u64::from(drive.heads), u64::from(zone.sectors), drive.rotation_ns());
        let angle = |sectors: u32| u64::from(sectors) * rev / spt;
        let cylinder_ns = heads * rev + (heads - 1) * angle(zone.track_skew) + angle(zone.cylinder_skew);
        let formula = 512.0 * (heads * spt) as f64 * 1000.0 / cylinder_ns as f64;
        // Whole cylinders of the outermost zone, a track at a time.
        let lbns: Vec<u64> = (0..heads * 500).map(|track| track * spt).collect();
        let rate = rate_mb_s(&closed_loop(&spec, Verb::Read, &lbns, spt), spt);
        assert_near(name, rate, formula, formula * 0.002);
    }
}

#[test]
fn without_a_write_cache_sequential_writes_lose_a_rotation_each() {
    let expected = [(15.372, 18.311), (11.591, 13.838), (10.032, 11.913), (10.056, 11.843)];
    for (name, (outer, inner)) in DRIVES.into_iter().zip(expected) {
        let spec = bare(name);
        let run = |first| mean_ms(&closed_loop(&spec, Verb::Write, &sequential(first), 256));
        assert_near(name, run(0), outer, 0.01);
        assert_near(name, run((spec.sectors() / 256 - REQUESTS) * 256), inner, 0.01);
    }
}

/// Returns commands per second with 32 always waiting, drawn from the first 3,000 of T1.
fn iops_with_32(spec: &DriveSpec, policy: Policy) -> f64 {
    let lbns = &t1(spec.sectors())[..3_000];
    let mut drive = DriveQueue::new(spec).unwrap();
    let mut host = HostQueue::new(policy);
    let mut next = lbns.iter();
    let mut served = 0_u32;
    loop {
        while host.len() + drive.len() < 32 {
            let Some(lbn) = next.next() else { break };
            host.push((), Command::read(*lbn, 8));
        }
        let now = drive.drive().free_at();
        while drive.has_room() {
            let Some(((), command)) = host.pop(drive.drive(), now) else { break };
            drive.push((), now, command);
        }
        if drive.serve().is_none() {
            return f64::from(served) / (now.0 as f64 / 1e9);
        }
        served += 1;
    }
}

#[test]
fn sorting_and_choosing_give_the_reference_rates() {
    for (name, expected) in DRIVES.into_iter().zip([107.3, 131.7, 131.0, 121.4]) {
        assert_near(name, iops_with_32(&bare(name), Policy::Clook), expected, 0.06);
    }
    for (name, expected) in [("st3160812as", 157.5), ("hds721616pla380", 153.7)] {
        let mut spec = bare(name);
        assert_near(name, iops_with_32(&spec, Policy::Sptf), expected, 0.06);
        spec.set("ncq_depth", "32").unwrap();
        // The drive itself also serves what has waited for a second, which costs a little.
        assert_near(name, iops_with_32(&spec, Policy::Fcfs), expected * 0.99, expected * 0.01);
    }
}

#[test]
fn sequential_transfers_through_the_buffer_reach_the_sustained_rate() {
    for (name, outer) in DRIVES.into_iter().zip([30.76, 40.24, 77.16, 76.08]) {
        let spec = spec(name, &[]);
        for verb in [Verb::Read, Verb::Write] {
            let rate = rate_mb_s(&closed_loop(&spec, verb, &sequential(0), 256), 256);
            // Data in the buffer at the end were accepted, but not written yet: at most 1 % of the run.
            assert_near(name, rate, outer, outer * 0.01);
        }
    }
}

#[test]
fn reads_are_answered_from_what_was_read_ahead() {
    let mut drive = Drive::new(&spec("st3160812as", &[])).unwrap();
    let first = drive.execute(Time(0), Command::read(1_000_000, 8));
    assert!(!first.cached && first.seek_ns > 0);
    let later = Time(first.finished.0 + 20_000_000);
    let hit = drive.execute(later, Command::read(1_000_008, 8));
    assert!(hit.cached);
    assert_eq!((hit.overhead_ns, hit.bus_ns, hit.wait_ns), (250_000, 13_653, 0));
    assert_eq!(hit.service_ns(), 263_653);
    // Read-ahead filled the segment of 960 sectors, and no more.
    assert!(drive.execute(later, Command::read(1_000_800, 8)).cached);
    assert!(!Drive::clone(&drive).execute(later, Command::read(1_003_000, 8)).cached);
    assert!(!drive.execute(later, Command::read(999_992, 8)).cached);
}

#[test]
fn a_read_waits_for_read_ahead_that_is_about_to_reach_it() {
    let mut drive = Drive::new(&spec("st3160812as", &[])).unwrap();
    let first = drive.execute(Time(0), Command::read(1_000_000, 8));
    let tail = drive.execute(first.finished, Command::read(1_000_008, 256));
    assert!(tail.cached && tail.wait_ns > 0);
    assert_eq!(tail.seek_ns + tail.rotation_ns + tail.transfer_ns, 0);
    // 264 sectors of a track of 1,426 or more from the media, in one go: no rotation is lost.
    let whole = Drive::new(&spec("st3160812as", &[])).unwrap().execute(Time(0), Command::read(1_000_000, 264));
    assert_eq!(tail.finished, whole.finished);
}

#[test]
fn another_command_ends_read_ahead() {
    let mut drive = Drive::new(&spec("st3160812as", &[])).unwrap();
    let first = drive.execute(Time(0), Command::read(1_000_000, 8));
    let far = drive.execute(first.finished, Command::read(200_000_000, 8));
    let back = drive.execute(far.finished, Command::read(1_000_008, 400));
    assert!(!back.cached);
    // A little was read in the meantime, the rest comes from the media.
    let bare = closed_loop(&bare("st3160812as"), Verb::Read, &[1_000_000, 200_000_000, 1_000_008], 400);
    assert!(back.transfer_ns < bare[2].transfer_ns, "{} {}", back.transfer_ns, bare[2].transfer_ns);
}

#[test]
fn writes_are_accepted_while_there_is_room_and_flushed_in_order_of_time() {
    let spec = spec("hds721616pla380", &[]);
    let mut drive = Drive::new(&spec).unwrap();
    let lbns = drawn(5, spec.sectors(), 8);
    let mut now = Time(0);
    for lbn in &lbns[..32] {
        let write = drive.execute(now, Command::write(*lbn, 8));
        assert!(write.cached && write.wait_ns == 0);
        now = write.finished;
    }
    let accepted = now;
    let flush = drive.execute(now, Command::flush());
    assert_eq!(drive.dirty_sectors(), 0);
    assert_eq!(drive.background().destage_sectors, 32 * 8);
    // The drive chooses among 32: better than one after the other in order of address.
    let destaged_ms = (flush.finished.0 - accepted.0) as f64 / 1e6 / 32.0;
    assert!(destaged_ms < 9.915, "{destaged_ms}");
    assert_eq!(drive.execute(flush.finished, Command::flush()).service_ns(), 300_000);
}

#[test]
fn a_full_buffer_makes_writes_wait_and_random_writes_faster() {
    for name in ["mpg3307at", "st3160812as"] {
        let spec = spec(name, &[]);
        let services = closed_loop(&spec, Verb::Write, &drawn(3, spec.sectors(), 8), 8);
        assert!(services.iter().any(|s| s.wait_ns > 0), "{name}");
        let steady = mean_ms(&services[2_000..]);
        let bare = mean_ms(&closed_loop(&bare(name), Verb::Write, &drawn(3, spec.sectors(), 8), 8));
        assert!(steady < bare, "{name}: {steady} {bare}");
    }
}

#[test]
fn forced_writes_and_reads_of_unwritten_data() {
    let mut drive = Drive::new(&spec("st3160812as", &[])).unwrap();
    let write = drive.execute(Time(0), Command::write(50_000_000, 64));
    let read = drive.execute(write.finished, Command::read(50_000_008, 8));
    assert!(read.cached, "what waits to be written is read from the buffer");
    let fua = Command { verb: Verb::WriteFua, ..Command::write(100_000_000, 8) };
    let forced = drive.execute(read.finished, fua);
    assert!(!forced.cached && forced.transfer_ns > 0);
    assert!(forced.wait_ns > 0, "the destage under way was finished first");
}

#[test]
fn the_drive_works_through_its_buffer_while_nobody_asks() {
    let mut drive = Drive::new(&spec("mpg3307at", &[])).unwrap();
    for (i, lbn) in drawn(9, 60_000_000, 8).into_iter().take(20).enumerate() {
        drive.execute(Time(i as u64 * 1_000_000), Command::write(lbn, 8));
    }
    assert!(drive.dirty_sectors() > 100);
    let flush = drive.execute(Time(2_000_000_000), Command::flush());
    assert_eq!(flush.service_ns(), 300_000);
    assert_eq!(drive.background().destages, 20);
}

#[test]
fn the_bare_mechanics_drive_has_nothing_but_mechanics() {
    let spec = spec("c9m", &[]);
    let lbns = drawn(1, 17_783_232, 8);
    let services = closed_loop(&spec, Verb::Read, &lbns, 8);
    assert!(services.iter().all(|s| !s.cached && s.overhead_ns + s.bus_ns + s.wait_ns == 0));
    let mean = |part: fn(&Service) -> u64| services.iter().map(part).sum::<u64>() as f64 / 1e6 / REQUESTS as f64;
    assert_near("half a rotation of 5.973 ms", mean(|s| s.rotation_ns), 2.987, 0.06);
    // Eight sectors of a track of 214 on average, and 7/214 of a skew of 2.7 ms.
    assert_near("transfer", mean(|s| s.transfer_ns), 0.311, 0.02);
    assert_near("seek", mean(|s| s.seek_ns), 5.4, 0.3);
    // A write settles after every move, however short.
    let write = closed_loop(&spec, Verb::Write, &[0, 254], 8);
    assert_eq!((write[0].seek_ns, write[1].seek_ns), (0, 491_000));
}

#[test]
fn every_sequence_of_commands_keeps_its_times_in_order() {
    let mut random = SplitMix64(77);
    for name in ["mpg3307at", "st3160812as", "c9m"] {
        let mut drive = Drive::new(&spec(name, &[])).unwrap();
        let (mut now, mut last) = (0, Time(0));
        for _ in 0..20_000 {
            now += random.next() % 3 * (random.next() % 8_000_000);
            let at = random.next() % 3_000 * 8 + random.next() % 2 * 10_000_000;
            let sectors = 1 + random.next() % 256;
            let command = match random.next() % 20 {
                0 => Command::flush(),
                1 => Command { verb: Verb::WriteFua, ..Command::write(at, sectors) },
                2..=9 => Command::write(at, sectors),
                _ => Command::read(at, sectors),
            };
            let service = drive.execute(Time(now), command);
            assert!(service.started >= last && service.started >= Time(now));
            let parts = service.overhead_ns + service.wait_ns + service.seek_ns + service.rotation_ns;
            assert_eq!(parts + service.transfer_ns + service.bus_ns, service.service_ns(), "{command:?} {service:?}");
            assert!(service.service_ns() < 3_000_000_000, "{command:?} {service:?}");
            last = service.finished;
        }
    }
}
