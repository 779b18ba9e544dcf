//! The SD card against the figures of `docs/models.md`.

use moafs_runtime::Time;

use super::super::Drive;
use super::super::flash::precondition::SplitMix64;
use super::super::service::{Command, Service, Verb};
use super::super::spec::DriveSpec;

/// Sectors of an allocation unit.
const UNIT: u64 = 8192;
const PAGE: u64 = 32;

fn card(name: &str) -> Drive {
    Drive::new(&DriveSpec::preset(name).unwrap()).unwrap()
}

#[track_caller]
fn checked(service: Service) -> Service {
    let parts = service.overhead_ns + service.wait_ns + service.gc_ns + service.transfer_ns + service.bus_ns;
    assert_eq!(parts, service.service_ns(), "{service:?}");
    service
}

fn ms(service: Service) -> f64 {
    checked(service).service_ns() as f64 / 1e6
}

/// Returns the mean time of commands in ms, one after the other.
fn run(drive: &mut Drive, commands: impl IntoIterator<Item = Command>) -> f64 {
    let times: Vec<f64> = commands.into_iter().map(|command| ms(drive.execute(drive.free_at(), command))).collect();
    times.iter().sum::<f64>() / times.len() as f64
}

fn random_writes(seed: u64, sectors: u64, count: usize) -> impl Iterator<Item = Command> {
    let mut random = SplitMix64(seed);
    std::iter::repeat_with(move || Command::write(random.next() % (sectors / 8) * 8, 8)).take(count)
}

#[track_caller]
fn assert_near(what: &str, is: f64, expected: f64, tolerance: f64) {
    assert!((is - expected).abs() <= tolerance, "{what}: {is:.4}, expected {expected} within {tolerance}");
}

#[test]
fn small_commands_take_the_times_of_the_sheet() {
    let mut drive = card("sd16-mid");
    assert_near("4 KiB read", ms(drive.execute(Time(0), Command::read(1_000_000, 8))), 0.726, 0.001);
    assert_near("4 KiB write", ms(drive.execute(drive.free_at(), Command::write(1_000_000, 8))), 2.061, 0.001);
}

#[test]
fn sequential_transfers_run_at_the_measured_rates() {
    let mut drive = card("sd16-mid");
    let commands = |verb| (0..1_024).map(move |i| Command { verb, at: crate::Lba(256 * i), sectors: 256 });
    let write_mb_s = 131.072 / run(&mut drive, commands(Verb::Write));
    let read_mb_s = 131.072 / run(&mut drive, commands(Verb::Read));
    println!("sequential 128 KiB: write {write_mb_s:.1} MB/s, read {read_mb_s:.1} MB/s");
    // 11.1, less two erases for each unit.
    assert_near("write", write_mb_s, 11.1, 0.35);
    assert_near("read", read_mb_s, 20.0, 0.2);
    let flash = drive.flash().unwrap();
    assert_eq!((flash.write_amplification(), flash.switch_merges, flash.unit_switches), (1.0, 32, 31));
}

#[test]
fn random_writes_take_what_was_measured() {
    let capacity = DriveSpec::preset("sd16-mid").unwrap().sectors();
    // Over 100 MiB: fitted to measured cards. Over all of it: predictions.
    for (name, region_ms, whole_ms) in
        [("sd16-slow", 21.3, 366.0), ("sd16-mid", 7.75, 283.0), ("sd16-good", 3.81, 164.0)]
    {
        for (sectors, expected) in [(25 * UNIT, region_ms), (capacity, whole_ms)] {
            let mut drive = card(name);
            run(&mut drive, random_writes(7, sectors, 10_000));
            let is = run(&mut drive, random_writes(8, sectors, 100_000));
            println!("{name}, random 4 KiB writes over {} MiB: {is:.2} ms", sectors >> 11);
            assert_near(name, is, expected, expected * 0.05);
        }
    }
}

#[test]
fn a_merge_copies_a_unit_and_erases_two() {
    let mut drive = card("sd16-slow");
    // Two random units hold 512 pages: the 513th write evicts the first of these.
    let gc_ns = |drive: &mut Drive, i| checked(drive.execute(drive.free_at(), Command::write(i * PAGE + 8, 8))).gc_ns;
    assert!((0..512).all(|i| gc_ns(&mut drive, i) == 0));
    assert_near("a merge", gc_ns(&mut drive, 512) as f64 / 1e6, 413.1, 0.1);
    let flash = drive.flash().unwrap();
    assert_eq!((flash.full_merges, flash.gc_pages, flash.host_pages), (1, 256, 513));
    // The pages behind it were of the same allocation unit, and are dead.
    assert!((513..768).all(|i| gc_ns(&mut drive, i) == 0));
    assert_near("an erased log and a merge", gc_ns(&mut drive, 768) as f64 / 1e6, 413.1 + 5.0, 0.1);
}

#[test]
fn parts_that_follow_one_another_are_collected() {
    let mut drive = card("sd16-mid");
    let part = |drive: &mut Drive, at| checked(drive.execute(drive.free_at(), Command::write(UNIT + at, 8)));
    // The first is programmed, the next two are collected, the last fills the page.
    assert!(!part(&mut drive, 0).cached);
    assert!(part(&mut drive, 8).cached && part(&mut drive, 16).cached);
    assert_eq!(drive.dirty_sectors(), 16);
    assert!(!part(&mut drive, 24).cached);
    let flash = drive.flash().unwrap();
    assert_eq!((flash.host_pages, flash.host_bytes, drive.dirty_sectors()), (2, 4 * 4096, 0));
    // Another page, and a flush, program what was collected.
    part(&mut drive, 32);
    part(&mut drive, 40);
    part(&mut drive, 392);
    assert_eq!(drive.flash().unwrap().host_pages, 5);
    part(&mut drive, 400);
    let flush = checked(drive.execute(drive.free_at(), Command::flush()));
    assert!(flush.wait_ns > 1_400_000 && drive.flash().unwrap().host_pages == 6);
    assert_eq!(checked(drive.execute(drive.free_at(), Command::flush())).service_ns(), 450_000);
}

#[test]
fn four_streams_run_in_order_and_a_fifth_takes_the_place_of_one() {
    let written = |streams: u64| {
        let mut drive = card("sd16-good");
        let page = |i| Command::write(i % streams * UNIT + i / streams * PAGE, PAGE);
        run(&mut drive, (0..streams * 256).map(page));
        drive.flash().unwrap()
    };
    let four = written(4);
    assert_eq!((four.write_amplification(), four.switch_merges, four.partial_merges), (1.0, 4, 0));
    // The fifth evicts a log that had one page, which continues in a random unit.
    let five = written(5);
    assert_eq!((five.gc_pages, five.switch_merges, five.partial_merges), (255, 4, 1));
}

#[test]
fn discarded_units_are_not_copied() {
    let mut drive = card("sd16-slow");
    drive.execute(Time(0), Command::discard(0, 16 * UNIT));
    assert_eq!(drive.flash().unwrap().trimmed_pages, 16 * 256);
    run(&mut drive, random_writes(3, 16 * UNIT, 600));
    assert!(drive.flash().unwrap().gc_pages < 600);
    assert!(drive.execute(drive.free_at(), Command::read(15 * UNIT + 31, 1)).service_ns() < 700_000);
}

#[test]
fn every_sequence_of_commands_keeps_its_times_in_order() {
    let mut random = SplitMix64(77);
    let mut drive = card("sd16-slow");
    let (mut now, mut last) = (0, Time(0));
    for _ in 0..20_000 {
        now += random.next() % 3 * (random.next() % 8_000_000);
        let (at, sectors) = (random.next() % 300_000, 1 + random.next() % 256);
        let command = match random.next() % 20 {
            0 => Command::flush(),
            1 => Command::discard(at, sectors),
            2..=11 => Command::write(at, sectors),
            _ => Command::read(at, sectors),
        };
        let service = checked(drive.execute(Time(now), command));
        assert!(service.started >= last && service.started >= Time(now));
        last = service.finished;
    }
}
