//! Finding the hub, being refused, staying alive, and ending.

use std::time::Instant;

use omnilearn_wire::handshake;
use omnilearn_wire::limits::FRAME_BYTES_MAX;
use omnilearn_wire::message::{AgentMessage, HubMessage};

use super::fake::{FakeFactory, Hub, JOB, Step, offer, start, train};
use crate::config::Token;
use crate::session::RunError;

#[tokio::test]
async fn hello_carries_name_token_and_machine() {
    let hub = Hub::new().await;
    let mut config = hub.config();
    config.token = Some(Token::new("open sesame").unwrap());
    let agent = start(config, &FakeFactory::new(8));
    let (mut peer, hello) = hub.accept_hello().await;
    assert_eq!((hello.name.as_str(), hello.token.as_deref(), hello.machine.cores), ("pi", Some("open sesame"), 3));
    peer.welcome(1000).await;
    peer.expect_heartbeats(1).await;
    agent.stop().await;
}

#[tokio::test]
async fn agent_waits_for_a_hub_that_is_not_there_yet_and_keeps_its_process_number() {
    let hub = Hub::new().await;
    let agent = hub.start(&FakeFactory::new(8));
    drop(hub.accept_tcp().await);
    let (first, hello) = hub.accept_hello().await;
    drop(first);
    let (mut second, hello_again) = hub.accept_hello().await;
    assert_eq!(hello.process, hello_again.process);
    second.welcome(1000).await;
    second.expect_heartbeats(1).await;
    agent.stop().await;
}

#[tokio::test]
async fn refused_agent_ends_with_the_hubs_reason() {
    let hub = Hub::new().await;
    let agent = hub.start(&FakeFactory::new(8));
    let (mut peer, _) = hub.accept_hello().await;
    peer.raw(handshake::encode_refusal("the token is wrong")).await;
    let error = agent.end().await.unwrap_err();
    assert!(matches!(&error, RunError::Refused { .. }), "{error:?}");
    assert!(error.to_string().ends_with("the hub refused: the token is wrong"), "{error}");
}

#[tokio::test]
async fn agent_of_another_protocol_ends_with_both_ranges() {
    for kind in [1, 2] {
        let hub = Hub::new().await;
        let agent = hub.start(&FakeFactory::new(8));
        let (mut peer, _) = hub.accept_hello().await;
        peer.raw([b"OLRN".as_slice(), &[7, 0, 8, 0, kind], b"reason"].concat()).await;
        let error = agent.end().await.unwrap_err().to_string();
        assert!(error.contains("protocol 7..=8 not supported, need 1..=1"), "{error}");
    }
}

#[tokio::test]
async fn cache_that_cannot_be_written_is_found_at_the_start() {
    let hub = Hub::new().await;
    let mut config = hub.config();
    config.cache = hub.cache.path().join("a file");
    std::fs::write(&config.cache, b"in the way").unwrap();
    let error = start(config, &FakeFactory::new(8)).end().await.unwrap_err();
    assert!(matches!(error, RunError::Cache(_)) && error.to_string().contains("--cache"), "{error}");
}

#[tokio::test]
async fn heartbeats_come_in_the_hubs_period_while_a_step_is_computed() {
    let mut hub = Hub::new().await;
    hub.heartbeat_ms = 50;
    hub.cache_kernel();
    let factory = FakeFactory::new(8);
    factory.on(1, Step::Held);
    let agent = hub.start(&factory);
    let mut peer = hub.accept_ready().await;
    peer.send(&train(1)).await;
    factory.begun(1).await;
    peer.expect_heartbeats(5).await;
    factory.release();
    peer.push(omnilearn_wire::AssignmentId(1)).await;
    agent.stop().await;
}

#[tokio::test]
async fn silent_hub_is_given_up_after_three_periods() {
    let mut hub = Hub::new().await;
    hub.heartbeat_ms = 100;
    let agent = hub.start(&FakeFactory::new(8));
    let silent = hub.accept().await; // held open, but nothing is read from it, so no ping is answered
    let start = Instant::now();
    let mut peer = hub.accept().await;
    assert!(start.elapsed().as_millis() >= 280, "{:?}", start.elapsed());
    peer.expect_heartbeats(5).await; // reading answers the pings, which keeps this one
    drop(silent);
    agent.stop().await;
}

#[tokio::test]
async fn shutdown_says_goodbye_in_the_middle_of_a_step() {
    let hub = Hub::new().await;
    hub.cache_kernel();
    let factory = FakeFactory::new(8);
    factory.on(1, Step::Held);
    let agent = hub.start(&factory);
    let mut peer = hub.accept_ready().await;
    peer.send(&train(1)).await;
    factory.begun(1).await;
    let start = Instant::now();
    agent.shutdown.cancel();
    assert!(matches!(peer.next().await, AgentMessage::Leaving { .. }));
    drop(peer);
    agent.end().await.unwrap();
    assert!(start.elapsed().as_secs_f64() < 2.0, "{:?}", start.elapsed());
    factory.release();
}

#[tokio::test]
async fn agent_ends_with_its_job_if_asked_to() {
    let hub = Hub::new().await;
    hub.cache_kernel();
    let mut config = hub.config();
    config.exit_when_done = true;
    let agent = start(config, &FakeFactory::new(8));
    let mut peer = hub.accept_ready().await;
    peer.send(&HubMessage::JobEnded { job: JOB, reason: "finished".to_owned() }).await;
    assert!(matches!(peer.next().await, AgentMessage::Leaving { .. }));
    drop(peer);
    agent.end().await.unwrap();
}

#[tokio::test]
async fn agent_stays_for_the_next_job_otherwise() {
    let hub = Hub::new().await;
    hub.cache_kernel();
    let agent = hub.start(&FakeFactory::new(8));
    let mut peer = hub.accept_ready().await;
    peer.send(&HubMessage::JobEnded { job: JOB, reason: "finished".to_owned() }).await;
    peer.send(&HubMessage::JobOffer(offer())).await;
    assert!(matches!(peer.next().await, AgentMessage::JobReady { .. }));
    agent.stop().await;
}

#[tokio::test]
async fn dismissed_agent_ends_with_the_reason_and_a_moved_hub_is_dialled_again() {
    let hub = Hub::new().await;
    let agent = hub.start(&FakeFactory::new(8));
    let mut peer = hub.accept().await;
    peer.send(&HubMessage::Closing { reason: "restarting".to_owned(), reconnect: true }).await;
    let mut peer = hub.accept().await;
    peer.send(&HubMessage::Closing { reason: "banned".to_owned(), reconnect: false }).await;
    let error = agent.end().await.unwrap_err();
    assert!(matches!(&error, RunError::Dismissed { reason } if reason == "banned"), "{error:?}");
}

#[tokio::test]
async fn oversize_frame_is_answered_with_1009_and_a_reason() {
    let hub = Hub::new().await;
    let agent = hub.start(&FakeFactory::new(8));
    let mut peer = hub.accept().await;
    // The rest of a frame that is refused by its length is never read.
    let oversize = tokio::time::timeout(std::time::Duration::from_secs(5), peer.raw(vec![0; FRAME_BYTES_MAX + 1]));
    let _ = oversize.await;
    let (code, reason) = peer.closed().await;
    assert_eq!(code, 1009);
    assert!(reason.contains(&(FRAME_BYTES_MAX + 1).to_string()), "{reason}");
    agent.stop().await;
}

#[tokio::test]
async fn frame_that_is_no_message_closes_the_connection_with_its_reason() {
    let hub = Hub::new().await;
    let agent = hub.start(&FakeFactory::new(8));
    let mut peer = hub.accept().await;
    peer.raw(vec![200, 1, 2]).await;
    let (code, reason) = peer.closed().await;
    assert_eq!(code, 1008);
    assert!(reason.starts_with("frame of 3 bytes is not a message"), "{reason}");
    hub.accept().await;
    agent.stop().await;
}
