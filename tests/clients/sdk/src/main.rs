//! Asks for paths of the metadata service by the AWS SDK's own client: `imds-by-sdk PATH…`.
//!
//! Out comes each answer between the marks of `tests/world/machine.rs`; an error ends it with what the SDK says of it. The
//! client does as it does for everybody: a session token first, one second of patience, its own retries.

use std::error::Error;

use aws_config::imds::Client;
use aws_config::provider_config::ProviderConfig;
use aws_smithy_http_client::Builder;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let http = Builder::new().build_http();
    let client = Client::builder().configure(&ProviderConfig::without_region().with_http_client(http)).build();
    for path in std::env::args().skip(1) {
        let answer = client.get(&*path).await?;
        println!("=== {path}\n{}\n=== end {path} ", answer.as_ref());
    }
    Ok(())
}
