"""What every gRPC server and channel of ours is made with."""
