//! Kernels, parameters, assignments and pushes when nothing goes wrong but the network.

use std::sync::atomic::Ordering;

use futures_util::{SinkExt, StreamExt};
use omnilearn_kernel_host::to_hex;
use omnilearn_wire::limits::CHUNK_BYTES;
use omnilearn_wire::message::{AgentMessage, Evaluate, HubMessage};
use omnilearn_wire::{AssignmentId, JobId, Version, frame};
use tokio_tungstenite::tungstenite::Message;

use super::fake::{FakeFactory, Hub, JOB, KERNEL, Step, digest, offer, soon, train};
use crate::session::compute::INBOX_BYTES;

#[tokio::test]
async fn step_is_computed_from_the_streamed_parameters_and_timed() {
    let hub = Hub::new().await;
    hub.cache_kernel();
    let agent = hub.start(&FakeFactory::new(1000));
    let mut peer = hub.accept_ready().await;
    let parameters: Vec<u8> = (0..1000).map(|index| index as u8).collect();
    peer.send_parameters(3, &parameters).await;
    peer.send(&train(1)).await;
    let (gradient, report) = peer.push(AssignmentId(1)).await;
    assert_eq!(gradient, parameters);
    let timings = report.timings.unwrap();
    assert!(timings.warm_up && timings.wait_s == 0.0 && timings.send_s > 0.0, "{timings:?}");
    assert_eq!((timings.load_s, timings.compute_s, timings.quota_cores), (1.0, 2.0, Some(0.5)));

    peer.send(&train(2)).await;
    let timings = peer.push(AssignmentId(2)).await.1.timings.unwrap();
    assert!(!timings.warm_up && timings.wait_s > 0.0, "{timings:?}");
    agent.stop().await;
}

#[tokio::test]
async fn gradient_of_many_chunks_arrives_whole_whatever_pieces_it_is_encoded_in() {
    let stream_bytes = 5 * CHUNK_BYTES / 2 + 12;
    let hub = Hub::new().await;
    hub.cache_kernel();
    let factory = FakeFactory::new(stream_bytes);
    let pieces = [1 << 12, CHUNK_BYTES - 4, CHUNK_BYTES, CHUNK_BYTES + 4, stream_bytes];
    for (assignment, piece_bytes) in (1..).zip(pieces) {
        factory.on(assignment, Step::Push(piece_bytes));
    }
    let agent = hub.start(&factory);
    let mut peer = hub.accept_ready().await;
    let parameters: Vec<u8> = (0..stream_bytes).map(|index| (index / 7) as u8).collect();
    peer.send_parameters(0, &parameters).await;
    for assignment in 1..=pieces.len() as u64 {
        peer.send(&train(assignment)).await;
        assert!(peer.push(AssignmentId(assignment)).await.0 == parameters, "assignment {assignment}");
    }
    agent.stop().await;
}

#[tokio::test]
async fn evaluation_reports_its_sums() {
    let hub = Hub::new().await;
    hub.cache_kernel();
    let agent = hub.start(&FakeFactory::new(8));
    let mut peer = hub.accept_ready().await;
    let assignment = AssignmentId(4);
    let work = Evaluate { job: JOB, assignment, version: Version(0), start: 100, end: 150, batch: 32 };
    peer.send(&HubMessage::Evaluate(work)).await;
    let expected = AgentMessage::Evaluated { assignment, samples: 50, loss_sum: 2.0, metric_sums: vec![3.0] };
    assert_eq!(peer.next().await, expected);
    agent.stop().await;
}

#[tokio::test]
async fn kernel_is_fetched_checked_and_kept() {
    let hub = Hub::new().await;
    let agent = hub.start(&FakeFactory::new(8));
    let mut peer = hub.accept().await;
    peer.send(&HubMessage::JobOffer(offer())).await;
    assert_eq!(peer.next().await, AgentMessage::FetchKernel { digest: digest(KERNEL), offset: 0 });
    peer.send_kernel(0, KERNEL.len()).await;
    assert!(matches!(peer.next().await, AgentMessage::JobReady { .. }));
    let files: Vec<_> =
        std::fs::read_dir(hub.cache.path().join("kernels")).unwrap().map(|file| file.unwrap()).collect();
    assert_eq!(files.len(), 1, "{files:?}");
    assert_eq!(files[0].file_name().to_str().unwrap(), format!("{}.wasm", to_hex(&digest(KERNEL))));
    assert_eq!(std::fs::read(files[0].path()).unwrap(), KERNEL);
    agent.stop().await;
}

#[tokio::test]
async fn kernel_fetch_resumes_where_the_connection_was_cut() {
    let hub = Hub::new().await;
    let factory = FakeFactory::new(8);
    let agent = hub.start(&factory);
    let mut received = 0;
    for end in [1, 17, KERNEL.len()] {
        let mut peer = hub.accept().await;
        peer.send(&HubMessage::JobOffer(offer())).await;
        let expected = AgentMessage::FetchKernel { digest: digest(KERNEL), offset: received as u64 };
        assert_eq!(peer.next().await, expected);
        peer.send_kernel(received, end).await;
        received = end;
        if end == KERNEL.len() {
            assert!(matches!(peer.next().await, AgentMessage::JobReady { .. }));
        }
    }
    assert_eq!(factory.prepared.load(Ordering::Relaxed), 1);
    agent.stop().await;
}

#[tokio::test]
async fn damaged_cached_kernel_is_fetched_again() {
    let hub = Hub::new().await;
    hub.cache_kernel();
    let file = hub.cache.path().join("kernels").join(format!("{}.wasm", to_hex(&digest(KERNEL))));
    std::fs::write(&file, b"something else").unwrap();
    let agent = hub.start(&FakeFactory::new(8));
    let mut peer = hub.accept().await;
    peer.send(&HubMessage::JobOffer(offer())).await;
    assert!(matches!(peer.next().await, AgentMessage::FetchKernel { offset: 0, .. }));
    peer.send_kernel(0, KERNEL.len()).await;
    assert!(matches!(peer.next().await, AgentMessage::JobReady { .. }));
    assert_eq!(std::fs::read(&file).unwrap(), KERNEL);
    agent.stop().await;
}

#[tokio::test]
async fn cancelled_assignments_are_not_computed_or_not_sent() {
    let hub = Hub::new().await;
    hub.cache_kernel();
    let factory = FakeFactory::new(8);
    factory.on(1, Step::Held);
    let agent = hub.start(&factory);
    let mut peer = hub.accept_ready().await;
    for assignment in 1..=3 {
        peer.send(&train(assignment)).await;
    }
    factory.begun(1).await;
    for assignment in [1, 2] {
        peer.send(&HubMessage::Cancel { assignment: AssignmentId(assignment) }).await;
    }
    // The answer to this comes from the network thread, after it has seen the cancellations.
    let unknown = HubMessage::Evaluate(Evaluate {
        job: JobId(99),
        assignment: AssignmentId(50),
        version: Version(0),
        start: 0,
        end: 1,
        batch: 1,
    });
    peer.send(&unknown).await;
    assert!(matches!(peer.next().await, AgentMessage::AssignmentFailed { assignment: AssignmentId(50), .. }));
    factory.release();
    factory.begun(3).await;
    peer.push(AssignmentId(3)).await;
    agent.stop().await;
}

#[tokio::test]
async fn connection_lost_in_mid_step_costs_no_work_twice_and_pushes_nothing_twice() {
    let hub = Hub::new().await;
    hub.cache_kernel();
    let factory = FakeFactory::new(8);
    factory.on(1, Step::Held);
    let agent = hub.start(&factory);
    let mut peer = hub.accept_ready().await;
    peer.send(&train(1)).await;
    factory.begun(1).await;
    drop(peer);
    let mut peer = hub.accept().await;
    peer.send(&HubMessage::JobOffer(offer())).await;
    factory.release();
    assert!(matches!(peer.next().await, AgentMessage::JobReady { .. }));
    peer.send_parameters(5, &[5; 8]).await;
    peer.send(&train(2)).await;
    let (gradient, report) = peer.push(AssignmentId(2)).await;
    assert_eq!(gradient, [5; 8]);
    assert!(report.timings.unwrap().warm_up);
    assert_eq!(factory.prepared.load(Ordering::Relaxed), 1, "the trainer was kept");
    agent.stop().await;
}

#[tokio::test]
async fn another_job_replaces_the_trainer() {
    let hub = Hub::new().await;
    hub.cache_kernel();
    let factory = FakeFactory::new(8);
    let agent = hub.start(&factory);
    let mut peer = hub.accept_ready().await;
    let mut other = offer();
    other.seed += 1;
    peer.send(&HubMessage::JobOffer(other)).await;
    assert!(matches!(peer.next().await, AgentMessage::JobReady { .. }));
    assert_eq!(factory.prepared.load(Ordering::Relaxed), 2);
    agent.stop().await;
}

#[tokio::test]
async fn heartbeats_go_on_while_parameters_wait_for_a_busy_compute_thread() {
    let stream_bytes = INBOX_BYTES;
    let mut hub = Hub::new().await;
    hub.heartbeat_ms = 50;
    hub.cache_kernel();
    let factory = FakeFactory::new(stream_bytes);
    factory.on(1, Step::Held);
    let agent = hub.start(&factory);
    let mut peer = hub.accept_ready().await;
    peer.send(&train(1)).await;
    factory.begun(1).await;
    let parameters: Vec<u8> = (0..stream_bytes).map(|index| (index / 5) as u8).collect();
    // Three times what the agent takes while it computes, so this ends only after the release below.
    let (mut sink, mut stream) = (&mut peer.socket).split();
    let send = async {
        let pieces = parameters.chunks(CHUNK_BYTES).enumerate();
        for (version, (index, bytes)) in
            (1..=3).flat_map(|version| pieces.clone().map(move |piece| (Version(version), piece)))
        {
            let (offset, total) = ((index * CHUNK_BYTES) as u64, stream_bytes as u64);
            let message = HubMessage::ParameterChunk { job: JOB, version, offset, total, bytes };
            let frame = frame::encode(&message).unwrap();
            sink.send(Message::Binary(frame.into())).await.unwrap();
        }
    };
    let watch = async {
        let mut heartbeats = 0;
        loop {
            let message = soon("a heartbeat", stream.next()).await.unwrap().unwrap();
            let Message::Binary(bytes) = message else { continue };
            match frame::decode::<AgentMessage<'_>>(&bytes).unwrap() {
                AgentMessage::Heartbeat => heartbeats += 1,
                AgentMessage::PushEnd { .. } => break,
                _ => continue,
            }
            if heartbeats == 4 {
                factory.release();
            }
        }
    };
    tokio::join!(send, watch);
    drop((sink, stream));
    peer.send(&train(2)).await;
    assert!(peer.push(AssignmentId(2)).await.0 == parameters);
    agent.stop().await;
}
