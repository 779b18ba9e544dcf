//! The speed of the drive models: random and sequential commands, bare mechanics, with the buffer, and on flash.

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use moafs_disk::Lba;
use moafs_disk::model::{Command, Drive, DriveSpec, Verb};

/// Commands in one measured round.
const COMMANDS: u64 = 10_000;

fn round(drive: &mut Drive, verb: Verb, next: &mut impl FnMut() -> u64) {
    for _ in 0..COMMANDS {
        let command = Command { verb, at: Lba(next()), sectors: 8 };
        black_box(drive.execute(drive.free_at(), command));
    }
}

fn drive(name: &str, settings: &[(&str, &str)]) -> Drive {
    let mut spec = DriveSpec::preset(name).expect("a built-in drive");
    settings.iter().for_each(|(parameter, value)| spec.set(parameter, value).expect("a parameter"));
    Drive::new(&spec).expect("a sound drive")
}

/// Measures random commands of 4 KiB as benchmark `name`, then sequential ones.
fn measure(c: &mut Criterion, mut drive: Drive, verb: Verb, name: &str) {
    let sectors = drive.sectors();
    let mut state = 1_u64;
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 16) % (sectors / 8) * 8
    };
    let mut group = c.benchmark_group("model");
    group.throughput(Throughput::Elements(COMMANDS));
    group.bench_function(name, |b| b.iter(|| round(&mut drive, verb, &mut random)));
    let mut at = 0;
    let mut sequential = || {
        at = (at + 8) % (sectors - 8);
        at
    };
    let name = name.replace("random", "sequential");
    group.bench_function(name, |b| b.iter(|| round(&mut drive, verb, &mut sequential)));
    group.finish();
}

fn benches(c: &mut Criterion) {
    for (cache, verb, name) in [
        ("off", Verb::Read, "random reads, no buffer"),
        ("off", Verb::Write, "random writes, no buffer"),
        ("on", Verb::Read, "random reads, read-ahead"),
        ("on", Verb::Write, "random writes, write-back"),
    ] {
        measure(c, drive("st3160812as", &[("cache", cache)]), verb, name);
    }
    let overwritten: &[(&str, &str)] = &[("precondition.overwrite_percent", "50")];
    for (model, settings, verb, name) in [
        ("samsung-slc-64", &[][..], Verb::Read, "random reads, ssd, log blocks"),
        ("samsung-slc-64", &[], Verb::Write, "random writes, ssd, log blocks"),
        ("samsung-slc-64-page", &[], Verb::Read, "random reads, ssd, page-mapped"),
        ("samsung-slc-64-page", overwritten, Verb::Write, "random writes, ssd, page-mapped"),
        ("sd16-mid", &[], Verb::Read, "random reads, card"),
        ("sd16-mid", &[], Verb::Write, "random writes, card"),
    ] {
        measure(c, drive(model, settings), verb, name);
    }
}

criterion_group!(model, benches);
criterion_main!(model);
