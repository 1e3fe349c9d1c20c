//! The exact bytes of every message. A change here is a change of the protocol: it breaks fleets of mixed versions, and
//! belongs behind a new [`crate::handshake::PROTOCOL_MAX`].

use crate::frame::{Message, decode, encode};
use crate::frozen::Frozen;
use crate::handshake::{self, Hello, Welcome};
use crate::message::{
    AgentMessage, AgentName, Augment, CalibrationPoint, Computation, Evaluate, Failure, HubMessage, JobOffer, JobReady,
    KernelSignature, LocalSteps, Machine, ManifestRef, PushOutcome, Setting, SettingValue, Span, StepReport,
    StepTimings, Train,
};
use crate::partition::Partition;
use crate::{AgentId, AssignmentId, Codec, JobId, Version};

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

/// Encodes to these bytes and decodes from them.
fn check<'a, M: Message<'a> + PartialEq + std::fmt::Debug>(message: M, expected: &str) {
    assert_eq!(hex(&encode(&message).unwrap()), expected, "{message:?}");
    let bytes: &'static [u8] = unhex(expected).leak(); // the chunk is borrowed from the frame
    assert_eq!(decode::<M>(bytes).unwrap(), message);
}

fn machine() -> Machine {
    Machine {
        architecture: "x86_64".to_owned(),
        os: "linux".to_owned(),
        cores: 2,
        quota_cores: Some(0.5),
        threads: 1,
        memory_bytes: 300,
        compute_device: "cpu".to_owned(),
        agent_version: "0.1.0".to_owned(),
    }
}

#[test]
fn every_agent_message_has_its_bytes() {
    check(AgentMessage::Heartbeat, "00");
    check(
        AgentMessage::FetchKernel { digest: [0xab; 32], offset: 300 },
        "01ababababababababababababababababababababababababababababababababac02",
    );
    let calibration = vec![CalibrationPoint { samples: 16, step_s: 0.25 }];
    let ready =
        JobReady { train_samples: 60_000, test_samples: 10_000, batch_max: Some(256), batch_step: 16, calibration };
    check(AgentMessage::JobReady { job: JobId(1), ready }, "0201e0d403904e018002100110000000000000d03f");
    check(AgentMessage::JobDeclined { job: JobId(1), reason: "no data".to_owned() }, "0301076e6f2064617461");
    let (job, assignment, version) = (JobId(1), AssignmentId(129), Version(2));
    check(AgentMessage::PushBegin { job, assignment, version, bytes: 1 << 20 }, "0401810102808040");
    check(AgentMessage::PushChunk { assignment, offset: 4, bytes: &[1, 2, 0xff] }, "05810104030102ff");
    let timings = StepTimings {
        wait_s: 1.0,
        load_s: 2.0,
        compute_s: 3.0,
        encode_s: 4.0,
        send_s: 5.0,
        cpu_s: 6.0,
        throttled_s: 7.0,
        quota_cores: Some(0.25),
        warm_up: true,
    };
    let report = StepReport { loss: 0.5, metric_sums: vec![8.0], timings: Some(timings), samples: 300 };
    check(
        AgentMessage::PushEnd { assignment, report: report.clone() },
        "0681010000003f0100000041010000803f0000004000004040000080400000a0400000c0400000e040010000803e01ac02",
    );
    let report = StepReport { timings: None, ..report };
    check(AgentMessage::PushEnd { assignment, report }, "0681010000003f010000004100ac02");
    let metric_sums = vec![9.0];
    check(
        AgentMessage::Evaluated { assignment, samples: 50, loss_sum: 0.5, metric_sums },
        "07810132000000000000e03f010000000000002240",
    );
    for (failure, expected) in [
        (Failure::Trap, "0881010003776879"),
        (Failure::Limit, "0881010103776879"),
        (Failure::Kernel, "0881010203776879"),
        (Failure::Device, "0881010303776879"),
        (Failure::Memory, "0881010403776879"),
        (Failure::Data, "0881010503776879"),
        (Failure::NotFinite, "0881010603776879"),
    ] {
        check(AgentMessage::AssignmentFailed { assignment, failure, message: "why".to_owned() }, expected);
    }
    check(AgentMessage::Leaving { reason: "bye".to_owned() }, "0903627965");
    check(
        AgentMessage::FetchData { digest: [0xab; 32], offset: 300, bytes: 1 << 20 },
        "0aababababababababababababababababababababababababababababababababac02808040",
    );
}

#[test]
fn every_hub_message_has_its_bytes() {
    let (job, assignment, version) = (JobId(1), AssignmentId(129), Version(2));
    let setting = |name: &str, value| Setting { name: name.to_owned(), value };
    let offer = JobOffer {
        job,
        name: "demo".to_owned(),
        kernel_digest: [0xcd; 32],
        kernel_bytes: 20_000,
        signatures: vec![KernelSignature { key: [0x1b; 32], signature: std::array::from_fn(|index| index as u8) }],
        settings: vec![
            setting("a", SettingValue::Flag(true)),
            setting("b", SettingValue::Integer(-3)),
            setting("c", SettingValue::Number(0.5)),
            setting("d", SettingValue::Text("x".to_owned())),
        ],
        dataset: "mnist".to_owned(),
        layout_digest: [0xef; 32],
        codec: Codec::Bf16,
        seed: 7,
        calibration_batches: vec![8, 300],
        batch_bounds: (1, 512),
        manifest: Some(ManifestRef { digest: [0x3c; 32], bytes: 300 }),
        augment: Augment { flip: true, crop_padding: 4 },
        partition: Partition::Classes { parts: 2, counts: vec![1, 300] },
        frozen: Some(Frozen { digest: [0x5d; 32], bytes: 300, parameters: vec![0, 1, 300] }),
    };
    check(
        HubMessage::JobOffer(offer),
        "00010464656d6fcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcda09c01011b1b1b1b1b1b1b1b1b1b1b1b1b1b1b1b1b1b1b1b1b1b1b1b1b1b1b1b1b1b1b1b000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f202122232425262728292a2b2c2d2e2f303132333435363738393a3b3c3d3e3f040161000101620105016302000000000000e03f0164030178056d6e697374efefefefefefefefefefefefefefefefefefefefefefefefefefefefefefefef01070208ac02018004013c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3cac02010402020201ac02015d5d5d5d5d5d5d5d5d5d5d5d5d5d5d5d5d5d5d5d5d5d5d5d5d5d5d5d5d5d5d5dac02030001ac02",
    );
    check(
        HubMessage::KernelChunk { digest: [0xab; 32], offset: 1, total: 4, bytes: &[1, 2, 3] },
        "01abababababababababababababababababababababababababababababababab010403010203",
    );
    check(HubMessage::ParameterChunk { job, version, offset: 0, total: 3, bytes: &[1, 2, 3] }, "020102000303010203");
    let spans = vec![Span { epoch: 0, start: 0, end: 16 }, Span { epoch: 1, start: 300, end: 301 }];
    let local = |elastic| Computation::Local(LocalSteps { steps: 4, learning_rate: 0.5, momentum: 0.25, elastic });
    for (computation, expected) in [
        (Computation::Gradient, "00"),
        (Computation::Timed { compute_s: 2.0 }, "0100000040"),
        (local(None), "02040000003f0000803e00"),
        (local(Some(0.125)), "02040000003f0000803e010000003e"),
    ] {
        let train = Train { job, assignment, round: 5, version, spans: spans.clone(), seed: 9, computation };
        check(HubMessage::Train(train), &format!("0301810105020200001001ac02ad0209{expected}"));
    }
    check(
        HubMessage::Evaluate(Evaluate { job, assignment, version, start: 0, end: 1000, batch: 256 }),
        "040181010200e8078002",
    );
    let outcome = PushOutcome::Accepted { version: Version(3), staleness: 1 };
    check(HubMessage::PushOutcome { assignment, outcome }, "058101000301");
    let outcome = PushOutcome::Refused { reason: "old".to_owned() };
    check(HubMessage::PushOutcome { assignment, outcome }, "05810101036f6c64");
    check(HubMessage::Cancel { assignment }, "068101");
    check(HubMessage::JobEnded { job, reason: "done".to_owned() }, "070104646f6e65");
    check(HubMessage::Closing { reason: "bye".to_owned(), reconnect: true }, "080362796501");
    check(
        HubMessage::DataChunk { digest: [0xab; 32], offset: 1, total: 4, bytes: &[1, 2, 3] },
        "09abababababababababababababababababababababababababababababababab010403010203",
    );
}

#[test]
fn every_partition_has_its_bytes() {
    for (partition, expected) in [
        (Partition::Shared, "00"),
        (Partition::Even { parts: 3 }, "0103"),
        (Partition::Classes { parts: 2, counts: vec![1, 0, 0, 300] }, "020204010000ac02"),
        (Partition::Groups { parts: 300 }, "03ac02"),
    ] {
        assert_eq!(hex(&postcard::to_stdvec(&partition).unwrap()), expected);
        assert_eq!(postcard::from_bytes::<Partition>(&unhex(expected)).unwrap(), partition);
    }
}

#[test]
fn handshake_frames_have_their_bytes() {
    let hello = Hello { name: "pi".to_owned(), token: Some("t".to_owned()), process: 300, machine: machine() };
    let bytes = handshake::encode_hello(&hello);
    assert_eq!(
        hex(&bytes),
        "4f4c524e0100010000027069010174ac02067838365f3634056c696e757802010000003f01ac020363707505302e312e30"
    );
    assert_eq!(handshake::decode_hello(&bytes).unwrap(), (1, hello));

    let welcome = Welcome { agent: AgentId(4), heartbeat_ms: 5000, hub_version: "0.1.0".to_owned() };
    let bytes = handshake::encode_welcome(1, &welcome);
    assert_eq!(hex(&bytes), "4f4c524e010001000104882705302e312e30");
    assert_eq!(handshake::decode_answer(&bytes).unwrap(), (1, welcome));

    let bytes = handshake::encode_refusal("no");
    assert_eq!(hex(&bytes), "4f4c524e01000100026e6f");
    assert_eq!(handshake::decode_answer(&bytes).unwrap_err().to_string(), "the hub refused: no");
}

#[test]
fn agent_name_has_its_bytes() {
    let name = AgentName { id: AgentId(300), name: "pi".to_owned() };
    assert_eq!(hex(&postcard::to_stdvec(&name).unwrap()), "ac02027069");
}

#[test]
fn layout_digest_is_pinned() {
    use crate::layout::{Layout, TensorShape};
    let tensor = |name: &str, shape: &[u32]| TensorShape { name: name.to_owned(), shape: shape.to_vec() };
    let layout = Layout::new(vec![tensor("w", &[2, 3]), tensor("b", &[3])], vec![tensor("mean", &[3])]).unwrap();
    assert_eq!(hex(&layout.digest()), "a594da933702c2add44f9115961b66b9b335218edaf509e255d091670185544d");
}
