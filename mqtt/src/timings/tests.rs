use proptest::prelude::*;

use super::*;

const SESSION: SessionMark = SessionMark { process: 1, epoch: 2 };

fn step(at_s: f64) -> TimedStep {
    let timings = StepTimings {
        wait_s: 0.5,
        load_s: 0.25,
        compute_s: 1.5,
        encode_s: 0.125,
        send_s: 0.0625,
        cpu_s: 2.0,
        throttled_s: 0.75,
        quota_cores: Some(0.5),
        warm_up: true,
    };
    let step = TimedStep { at_s, job: 3, assignment: 4, round: 5, version: 6, samples: 7, ..TimedStep::default() };
    step.with_timings(&timings)
}

fn batch(steps: Vec<TimedStep>) -> TimingsBatch {
    TimingsBatch { agent: "pi-4".into(), session: SESSION, first: steps[0].seq, lost: 9, steps }
}

#[test]
fn a_batch_is_the_json_that_is_documented() {
    let batch = batch(vec![TimedStep { seq: 8, quota_cores: None, ..step(10.5) }]);
    let expected = concat!(
        r#"{"agent":"pi-4","session":{"process":"0000000000000001","epoch":2},"first":8,"lost":9,"steps":["#,
        r#"{"seq":8,"at_s":10.5,"job":3,"assignment":4,"round":5,"version":6,"samples":7,"wait_s":0.5,"load_s":0.25,"#,
        r#""compute_s":1.5,"encode_s":0.125,"send_s":0.0625,"cpu_s":2.0,"throttled_s":0.75,"quota_cores":null,"warm_up":true}]}"#,
    );
    assert_eq!(String::from_utf8(batch.encode(TimingsFormat::Json)).unwrap(), expected);
    assert_eq!(TimingsBatch::decode("pi-4", expected.as_bytes()).unwrap(), batch);
}

#[test]
fn postcard_is_a_fourth_of_json_and_the_same() {
    let batch = batch((0..100).map(|seq| TimedStep { seq, ..step(seq as f64 / 3.0) }).collect());
    let (json, postcard) = (batch.encode(TimingsFormat::Json), batch.encode(TimingsFormat::Postcard));
    assert_eq!(postcard[0], 1);
    assert!(postcard.len() * 4 < json.len(), "{} {}", postcard.len(), json.len());
    for payload in [json, postcard] {
        assert_eq!(TimingsBatch::decode("pi-4", &payload).unwrap(), batch);
    }
}

#[test]
fn phases_survive_and_what_json_cannot_hold_is_zero() {
    let timings = StepTimings {
        wait_s: f32::NAN,
        load_s: f32::INFINITY,
        quota_cores: Some(f32::NAN),
        cpu_s: 1.5,
        ..StepTimings::default()
    };
    let found = TimedStep::default().with_timings(&timings).timings();
    assert_eq!(found, StepTimings { cpu_s: 1.5, ..StepTimings::default() });
}

#[test]
fn what_no_agent_sends_is_refused() {
    let good = batch(vec![TimedStep { seq: 1, ..step(1.0) }, TimedStep { seq: 2, ..step(2.0) }]);
    let decode = |batch: &TimingsBatch| TimingsBatch::decode("pi-4", &batch.encode(TimingsFormat::Postcard));
    assert!(decode(&good).is_ok());
    let changed = |change: fn(&mut TimingsBatch)| {
        let mut batch = good.clone();
        change(&mut batch);
        decode(&batch)
    };
    assert!(matches!(changed(|batch| batch.steps.clear()), Err(TimingsError::Steps { .. })));
    assert!(matches!(changed(|batch| batch.first = 0), Err(TimingsError::Steps { .. })));
    assert!(matches!(changed(|batch| batch.steps.reverse()), Err(TimingsError::Steps { .. })));
    assert!(matches!(changed(|batch| batch.steps[1].seq = 1), Err(TimingsError::Steps { .. })));
    assert!(matches!(changed(|batch| batch.steps[1].cpu_s = f32::NAN), Err(TimingsError::NotFinite { seq: 2 })));
    assert!(matches!(changed(|batch| batch.agent = "pi-5".into()), Err(TimingsError::Name)));
    assert!(matches!(TimingsBatch::decode("x", b"\x02"), Err(TimingsError::Format)));
    assert!(matches!(TimingsBatch::decode("x", &vec![b'{'; BATCH_BYTES_MAX + 1]), Err(TimingsError::TooLong { .. })));
}

proptest! {
    #[test]
    fn hostile_bytes_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200), kind in 0u8..3) {
        let bytes = match kind {
            0 => bytes,
            1 => [&[1], &bytes[..]].concat(),
            _ => [b"{", &bytes[..]].concat(),
        };
        prop_assert!(TimingsBatch::decode("x", &bytes).is_err());
    }

    /// Broker and hub that lose batches and receipts, deliver receipts late or again, and are away for a while.
    #[test]
    fn every_step_arrives_once_and_in_order_or_is_counted_as_lost(
        steps_max in prop_oneof![1usize..50, Just(150)],
        bytes_max in 500usize..5000,
        format in prop_oneof![Just(TimingsFormat::Json), Just(TimingsFormat::Postcard)],
        events in proptest::collection::vec(0u8..8, 1..300),
    ) {
        let mut buffer = TimingsBuffer::new("pi-4", format, steps_max);
        let (mut hub, mut receipts, mut pushed) = (Hub::default(), vec![0], 0);
        // In the end everything gets through.
        for event in events.into_iter().chain([7, 4, 5].repeat(160)) {
            match event {
                0..=2 if pushed < 150 => {
                    prop_assert_eq!(buffer.push(step(pushed as f64)), pushed);
                    pushed += 1;
                }
                3 | 4 => if let Some(payload) = buffer.next_batch(SESSION, bytes_max) {
                    prop_assert!(payload.len() <= bytes_max);
                    prop_assert!(buffer.next_batch(SESSION, bytes_max).is_none(), "two at a time");
                    if event == 4 {
                        receipts.push(hub.take(&payload));
                    }
                }
                5 => buffer.received(hub.next),
                6 => buffer.received(receipts[pushed as usize % receipts.len()]),
                7 => buffer.failed(),
                _ => {}
            }
            prop_assert!(buffer.waiting() <= steps_max);
            prop_assert!(hub.taken + buffer.waiting() as u64 + buffer.lost() >= pushed, "a step is nowhere");
            prop_assert!(hub.missed <= buffer.lost(), "the hub misses what nobody dropped");
        }
        prop_assert_eq!((buffer.waiting(), buffer.is_under_way()), (0, false));
        // A step that was dropped after it was sent may have arrived nevertheless.
        prop_assert!(hub.taken <= pushed && (steps_max < 150 || (hub.taken, buffer.lost()) == (pushed, 0)));
    }
}

/// Takes each step once, as the hub does.
#[derive(Default)]
struct Hub {
    next: u64,
    taken: u64,
    missed: u64,
}

impl Hub {
    fn take(&mut self, payload: &[u8]) -> u64 {
        for step in TimingsBatch::decode("pi-4", payload).unwrap().steps {
            if step.seq >= self.next {
                self.missed += step.seq - self.next;
                self.taken += 1;
                self.next = step.seq + 1;
            }
        }
        self.next
    }
}

#[test]
fn a_receipt_for_what_was_never_sent_removes_nothing() {
    let mut buffer = TimingsBuffer::new("pi-4", TimingsFormat::Json, 10);
    buffer.push(step(0.0));
    buffer.received(u64::MAX);
    assert_eq!(buffer.waiting(), 1);
    buffer.next_batch(SESSION, 1 << 20).unwrap();
    buffer.push(step(1.0));
    buffer.received(0);
    assert!(buffer.is_under_way());
    buffer.received(u64::MAX);
    assert_eq!((buffer.waiting(), buffer.is_under_way()), (1, false));
}
