//! Frames from a peer that is wrong or means harm: no panic, and no allocation larger than a frame may be.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use omnilearn_wire::frame::{FrameError, Message, decode, encode};
use omnilearn_wire::frozen::Frozen;
use omnilearn_wire::handshake::{self, Hello, Welcome};
use omnilearn_wire::limits::{
    CHUNK_BYTES, FRAME_BYTES_MAX, FROZEN_MAX, METRICS_MAX, SETTINGS_MAX, SIGNATURES_MAX, SPANS_MAX,
};
use omnilearn_wire::message::{
    AgentMessage, Augment, CalibrationPoint, Computation, Evaluate, Failure, HubMessage, JobOffer, JobReady,
    KernelSignature, Machine, ManifestRef, PushOutcome, Setting, SettingValue, Span, StepReport, StepTimings, Train,
};
use omnilearn_wire::partition::Partition;
use omnilearn_wire::sampling::SplitMix64;
use omnilearn_wire::{AgentId, AssignmentId, Codec, JobId, Version};
use proptest::prelude::*;

/// Notes the largest allocation of each thread.
struct Watching;

thread_local! {
    static LARGEST: Cell<usize> = const { Cell::new(0) };
}

fn note(bytes: usize) {
    LARGEST.with(|largest| largest.set(largest.get().max(bytes)));
}

#[expect(unsafe_code, reason = "an allocator that watches can only be written so")]
// SAFETY: every call is passed on to the system's allocator as it is.
unsafe impl GlobalAlloc for Watching {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(layout.size());
        // SAFETY: the caller keeps the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        note(bytes);
        // SAFETY: the caller keeps the contract.
        unsafe { System.realloc(pointer, layout, bytes) }
    }
}

#[global_allocator]
static ALLOCATOR: Watching = Watching;

fn largest_allocation(act: impl FnOnce()) -> usize {
    LARGEST.with(|largest| largest.set(0));
    act();
    LARGEST.with(Cell::get)
}

fn text(length: usize) -> String {
    "n".repeat(length)
}

fn agent_messages() -> Vec<AgentMessage<'static>> {
    let (job, assignment, version) = (JobId(1), AssignmentId(1 << 40), Version(300));
    let calibration = vec![CalibrationPoint { samples: 16, step_s: 0.1 }; 3];
    let ready = JobReady { train_samples: 1, test_samples: 2, batch_max: None, batch_step: 1, calibration };
    let report = StepReport { loss: 1.0, metric_sums: vec![1.0; 3], timings: Some(StepTimings::default()), samples: 7 };
    vec![
        AgentMessage::Heartbeat,
        AgentMessage::FetchKernel { digest: [9; 32], offset: u64::MAX },
        AgentMessage::JobReady { job, ready },
        AgentMessage::JobDeclined { job, reason: text(40) },
        AgentMessage::PushBegin { job, assignment, version, bytes: 1 << 33 },
        AgentMessage::PushChunk { assignment, offset: 1 << 32, bytes: &[3; 100] },
        AgentMessage::PushEnd { assignment, report },
        AgentMessage::Evaluated { assignment, samples: 5, loss_sum: 1.0, metric_sums: vec![2.0; 3] },
        AgentMessage::AssignmentFailed { assignment, failure: Failure::Memory, message: text(20) },
        AgentMessage::Leaving { reason: text(20) },
        AgentMessage::FetchData { digest: [9; 32], offset: u64::MAX, bytes: 1 << 20 },
    ]
}

fn hub_messages() -> Vec<HubMessage<'static>> {
    let (job, assignment, version) = (JobId(1), AssignmentId(1 << 40), Version(300));
    let settings = vec![
        Setting { name: text(5), value: SettingValue::Flag(true) },
        Setting { name: text(5), value: SettingValue::Integer(-1) },
        Setting { name: text(5), value: SettingValue::Number(0.5) },
        Setting { name: text(5), value: SettingValue::Text(text(9)) },
    ];
    let offer = JobOffer {
        job,
        name: text(8),
        kernel_digest: [1; 32],
        kernel_bytes: 1000,
        signatures: vec![KernelSignature { key: [3; 32], signature: [4; 64] }; 2],
        settings,
        dataset: text(5),
        layout_digest: [2; 32],
        codec: Codec::Bf16,
        seed: 5,
        calibration_batches: vec![1, 2, 300],
        batch_bounds: (1, 2),
        manifest: Some(ManifestRef { digest: [5; 32], bytes: 300 }),
        augment: Augment { flip: true, crop_padding: 4 },
        partition: Partition::Classes { parts: 2, counts: vec![1, 300, 4, 0] },
        frozen: Some(Frozen { digest: [6; 32], bytes: 300, parameters: vec![0, 1, 300] }),
    };
    let spans = vec![Span { epoch: 1, start: 2, end: 300 }; 4];
    vec![
        HubMessage::JobOffer(offer),
        HubMessage::KernelChunk { digest: [1; 32], offset: 0, total: 50, bytes: &[1; 50] },
        HubMessage::DataChunk { digest: [1; 32], offset: 0, total: 50, bytes: &[1; 50] },
        HubMessage::ParameterChunk { job, version, offset: 0, total: 50, bytes: &[1; 50] },
        HubMessage::Train(Train {
            job,
            assignment,
            round: 1,
            version,
            spans,
            seed: 3,
            computation: Computation::Gradient,
        }),
        HubMessage::Evaluate(Evaluate { job, assignment, version, start: 0, end: 5, batch: 3 }),
        HubMessage::PushOutcome { assignment, outcome: PushOutcome::Accepted { version, staleness: 2 } },
        HubMessage::PushOutcome { assignment, outcome: PushOutcome::Refused { reason: text(9) } },
        HubMessage::Cancel { assignment },
        HubMessage::JobEnded { job, reason: text(9) },
        HubMessage::Closing { reason: text(9), reconnect: true },
    ]
}

fn handshakes() -> Vec<Vec<u8>> {
    let hello = Hello { name: text(5), token: Some(text(9)), process: 1, machine: Machine::default() };
    let welcome = Welcome { agent: AgentId(1), heartbeat_ms: 5000, hub_version: text(5) };
    vec![handshake::encode_hello(&hello), handshake::encode_welcome(1, &welcome), handshake::encode_refusal("no")]
}

/// Changes, cuts, repeats or inserts bytes, with a taste for those that make lengths near 2^32 and 2^64.
fn mutate(frame: &mut Vec<u8>, random: &mut SplitMix64) {
    for _ in 0..=random.below(3) {
        let at = random.below(frame.len() as u64 + 1) as usize;
        match random.below(7) {
            0 if at < frame.len() => frame[at] ^= 1 << random.below(8),
            1 if at < frame.len() => frame[at] = random.next_u64() as u8,
            2 => frame.truncate(at),
            3 => drop(frame.splice(at..at, [0xff, 0xff, 0xff, 0xff, 0x0f])), // 2^32 - 1
            4 => drop(frame.splice(at..at, [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01])), // 2^64 - 1
            5 if at < frame.len() => frame[at] = [0x00, 0x7f, 0x80, 0xff][random.below(4) as usize],
            _ => {
                let tail = frame[at..].to_vec();
                frame.extend_from_slice(&tail[..tail.len().min(64)]);
            }
        }
    }
}

#[test]
fn a_million_mutated_frames_neither_panic_nor_allocate_more_than_a_frame() {
    let mut seeds: Vec<Vec<u8>> = agent_messages().iter().map(|message| encode(message).unwrap()).collect();
    seeds.extend(hub_messages().iter().map(|message| encode(message).unwrap()));
    seeds.extend(handshakes());
    let mut random = SplitMix64::new(1);
    let mut understood = 0u32;
    let mut frame = Vec::with_capacity(4096);
    let largest = largest_allocation(|| {
        for round in 0..1_000_000 {
            frame.clear();
            frame.extend_from_slice(&seeds[round % seeds.len()]);
            mutate(&mut frame, &mut random);
            understood += u32::from(decode::<AgentMessage<'_>>(&frame).is_ok());
            understood += u32::from(decode::<HubMessage<'_>>(&frame).is_ok());
            understood += u32::from(match round % 2 {
                0 => handshake::decode_hello(&frame).is_ok(),
                _ => handshake::decode_answer(&frame).is_ok(),
            });
        }
    });
    assert!(largest <= 64 << 10, "{largest} bytes at once for frames of a few hundred");
    assert!(understood > 10_000, "the mutations are too wild to test anything: {understood}");
}

#[test]
fn announced_lengths_are_not_believed() {
    let varint = |mut value: u64| {
        let mut bytes = Vec::new();
        while value >= 0x80 {
            bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        bytes.push(value as u8);
        bytes
    };
    for length in [1 << 24, 1 << 31, (1 << 32) - 1, 1 << 32, 1 << 63, u64::MAX].map(varint) {
        // Variant, then ids of one byte and numbers of eight or four, then a length.
        for head in [&[3, 1][..], &[5, 1, 0], &[7, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0], &[9], &[6, 1, 0, 0, 0, 0]] {
            let frame = [head, &length, &[1, 2, 3]].concat();
            let largest = largest_allocation(|| assert!(decode::<AgentMessage<'_>>(&frame).is_err(), "{frame:?}"));
            assert!(largest < 4096, "{largest} bytes for {frame:?}");
        }
        for head in [&[3, 1, 1, 1, 1][..], &[2, 1, 1, 0, 9], &[7, 1], &[0, 1]] {
            let frame = [head, &length, &[1, 2, 3]].concat();
            let largest = largest_allocation(|| assert!(decode::<HubMessage<'_>>(&frame).is_err(), "{frame:?}"));
            assert!(largest < 4096, "{largest} bytes for {frame:?}");
        }
    }
}

#[test]
fn lists_are_bounded_on_both_ends() {
    let spans = vec![Span { epoch: 0, start: 0, end: 1 }; SPANS_MAX + 1];
    let train = |spans: &[Span]| {
        let (job, assignment, version) = (JobId(1), AssignmentId(1), Version(1));
        let computation = Computation::Gradient;
        HubMessage::Train(Train { job, assignment, round: 1, version, spans: spans.to_vec(), seed: 1, computation })
    };
    assert!(encode(&train(&spans[1..])).is_ok());
    assert!(matches!(encode(&train(&spans)), Err(FrameError::Malformed { .. })));

    // A frame full of the smallest settings would be 20 times as large in memory.
    let head = [0, 1, 0].into_iter().chain([0; 32]).chain([0, 0]);
    let mut frame: Vec<u8> = head.chain([0xff, 0xff, 0x0f]).collect();
    frame.resize(CHUNK_BYTES, 0);
    let largest = largest_allocation(|| assert!(decode::<HubMessage<'_>>(&frame).is_err()));
    assert!(largest < (SETTINGS_MAX + 1) * 128, "{largest}");

    let offer = |signatures| {
        let HubMessage::JobOffer(offer) = hub_messages().remove(0) else { panic!("an offer comes first") };
        HubMessage::JobOffer(JobOffer {
            signatures: vec![KernelSignature { key: [0; 32], signature: [0; 64] }; signatures],
            ..offer
        })
    };
    assert!(encode(&offer(SIGNATURES_MAX)).is_ok());
    assert!(matches!(encode(&offer(SIGNATURES_MAX + 1)), Err(FrameError::Malformed { .. })));
    let head = [0, 1, 0].into_iter().chain([0; 32]).chain([0, SIGNATURES_MAX as u8 + 1]);
    let mut frame: Vec<u8> = head.collect();
    frame.resize(CHUNK_BYTES, 0);
    assert!(decode::<HubMessage<'_>>(&frame).is_err());

    let offer = |parameters| {
        let HubMessage::JobOffer(offer) = hub_messages().remove(0) else { panic!("an offer comes first") };
        let frozen = Some(Frozen { digest: [0; 32], bytes: 1, parameters: vec![1; parameters] });
        HubMessage::JobOffer(JobOffer { frozen, ..offer })
    };
    let longest = encode(&offer(FROZEN_MAX)).unwrap();
    assert!(matches!(encode(&offer(FROZEN_MAX + 1)), Err(FrameError::Malformed { .. })));
    // The length of the list is three bytes before its elements, each of one byte: 2^16, and here one more.
    let (head, list) = longest.split_at(longest.len() - FROZEN_MAX - 3);
    assert_eq!(list[..3], [0x80, 0x80, 0x04]);
    let frame = [head, &[0x81, 0x80, 0x04], &list[3..], &[1]].concat();
    let largest = largest_allocation(|| assert!(decode::<HubMessage<'_>>(&frame).is_err()));
    assert!(largest < 4096, "{largest}");

    let metric_sums = vec![0.0; METRICS_MAX + 1];
    assert!(
        encode(&AgentMessage::Evaluated { assignment: AssignmentId(1), samples: 1, loss_sum: 0.0, metric_sums })
            .is_err()
    );
}

#[test]
fn chunks_and_frames_over_the_limit_are_refused_on_both_ends() {
    let bytes = vec![1; CHUNK_BYTES + 1];
    let chunk = |bytes| AgentMessage::PushChunk { assignment: AssignmentId(1), offset: 0, bytes };
    assert_eq!(encode(&chunk(&bytes)), Err(FrameError::ChunkTooLong { bytes: CHUNK_BYTES + 1 }));
    let fits = encode(&chunk(&bytes[1..])).unwrap();
    assert_eq!(decode::<AgentMessage<'_>>(&fits).unwrap(), chunk(&bytes[1..]));

    let forged: Vec<u8> = [5, 1, 0, 0x81, 0x80, 0x40].into_iter().chain(bytes.iter().copied()).collect();
    assert_eq!(decode::<AgentMessage<'_>>(&forged), Err(FrameError::ChunkTooLong { bytes: CHUNK_BYTES + 1 }));
    let long = vec![0; FRAME_BYTES_MAX + 1];
    assert_eq!(decode::<AgentMessage<'_>>(&long), Err(FrameError::TooLong { bytes: long.len() }));
    let reason = text(FRAME_BYTES_MAX);
    assert!(matches!(encode(&AgentMessage::Leaving { reason }), Err(FrameError::TooLong { .. })));
}

#[test]
fn every_cut_and_every_surplus_byte_is_noticed() {
    fn check<'a, M: Message<'a>>(frame: &'a mut Vec<u8>) {
        frame.push(0);
        let frame: &'a [u8] = frame;
        assert_eq!(decode::<M>(frame).err(), Some(FrameError::TrailingBytes { bytes: 1 }));
        for end in 0..frame.len() - 1 {
            let cut = decode::<M>(&frame[..end]).err();
            assert!(matches!(cut, Some(FrameError::Malformed { .. })), "cut at {end} of {frame:?}: {cut:?}");
        }
    }
    for message in agent_messages() {
        check::<AgentMessage<'_>>(&mut encode(&message).unwrap());
    }
    for message in hub_messages() {
        check::<HubMessage<'_>>(&mut encode(&message).unwrap());
    }
}

#[test]
fn unknown_variants_are_errors_and_not_guesses() {
    assert!(matches!(decode::<AgentMessage<'_>>(&[10, 0]), Err(FrameError::Malformed { .. })));
    assert!(matches!(decode::<HubMessage<'_>>(&[9, 0]), Err(FrameError::Malformed { .. })));
    assert!(matches!(decode::<HubMessage<'_>>(&[]), Err(FrameError::Malformed { bytes: 0, .. })));
}

proptest! {
    #[test]
    fn agent_messages_of_any_content_survive(
        job: u64, assignment: u64, version: u64, offset: u64, chunk in prop::collection::vec(any::<u8>(), 0..3000),
        loss in -1e30f32..1e30, sums in prop::collection::vec(-1e30f32..1e30, 0..METRICS_MAX), reason in ".{0,80}", warm_up: bool,
        times in prop::array::uniform7(0f32..1e9), quota_cores in prop::option::of(0f32..100.0), samples: u32, timed: bool,
    ) {
        let (job, assignment, version) = (JobId(job), AssignmentId(assignment), Version(version));
        let [wait_s, load_s, compute_s, encode_s, send_s, cpu_s, throttled_s] = times;
        let timings = StepTimings { wait_s, load_s, compute_s, encode_s, send_s, cpu_s, throttled_s, quota_cores, warm_up };
        let timings = timed.then_some(timings);
        let metric_sums: Vec<f64> = sums.iter().map(|&sum| f64::from(sum)).collect();
        for message in [
            AgentMessage::PushBegin { job, assignment, version, bytes: offset },
            AgentMessage::PushChunk { assignment, offset, bytes: &chunk },
            AgentMessage::PushEnd { assignment, report: StepReport { loss, metric_sums: sums.clone(), timings, samples } },
            AgentMessage::Evaluated { assignment, samples, loss_sum: f64::from(loss), metric_sums },
            AgentMessage::JobDeclined { job, reason: reason.clone() },
            AgentMessage::FetchKernel { digest: [samples as u8; 32], offset },
            AgentMessage::FetchData { digest: [samples as u8; 32], offset, bytes: samples },
        ] {
            let frame = encode(&message).unwrap();
            prop_assert_eq!(decode::<AgentMessage<'_>>(&frame).unwrap(), message);
        }
    }

    #[test]
    fn hub_messages_of_any_content_survive(
        job: u64, assignment: u64, version: u64, offset: u64, total: u64, round: u64, seed: u64, reconnect: bool, batch: u32,
        chunk in prop::collection::vec(any::<u8>(), 0..3000), reason in ".{0,80}",
        spans in prop::collection::vec((any::<u32>(), any::<u32>(), any::<u32>()), 0..50), compute_s in 0f32..1e9,
        integers in prop::collection::vec(any::<i64>(), 0..20), batches in prop::collection::vec(any::<u32>(), 0..20),
    ) {
        let (job, assignment, version) = (JobId(job), AssignmentId(assignment), Version(version));
        let spans = spans.into_iter().map(|(epoch, start, end)| Span { epoch, start, end }).collect();
        let computation = Computation::Timed { compute_s };
        let settings = integers.iter().map(|&value| Setting { name: reason.clone(), value: SettingValue::Integer(value) });
        let offer = JobOffer {
            job, name: reason.clone(), kernel_digest: [batch as u8; 32], kernel_bytes: total, settings: settings.collect(),
            signatures: vec![KernelSignature { key: [batch as u8; 32], signature: [seed as u8; 64] }; batch as usize % SIGNATURES_MAX],
            dataset: reason.clone(), layout_digest: [0; 32], codec: Codec::F32, seed, calibration_batches: batches,
            batch_bounds: (batch, batch),
            manifest: reconnect.then_some(ManifestRef { digest: [7; 32], bytes: total }),
            augment: Augment { flip: reconnect, crop_padding: batch },
            partition: Partition::Classes { parts: batch, counts: vec![batch; 3] },
            frozen: reconnect.then(|| Frozen { digest: [batch as u8; 32], bytes: total, parameters: vec![batch; 3] }),
        };
        for message in [
            HubMessage::JobOffer(offer),
            HubMessage::KernelChunk { digest: [0; 32], offset, total, bytes: &chunk },
            HubMessage::DataChunk { digest: [0; 32], offset, total, bytes: &chunk },
            HubMessage::ParameterChunk { job, version, offset, total, bytes: &chunk },
            HubMessage::Train(Train { job, assignment, round, version, spans, seed, computation }),
            HubMessage::Evaluate(Evaluate { job, assignment, version, start: batch, end: batch, batch }),
            HubMessage::PushOutcome { assignment, outcome: PushOutcome::Refused { reason: reason.clone() } },
            HubMessage::Closing { reason, reconnect },
        ] {
            let frame = encode(&message).unwrap();
            prop_assert_eq!(decode::<HubMessage<'_>>(&frame).unwrap(), message);
        }
    }
}
