"""What a GPU needs beyond the simulation, by the names that a capture has for it. Imports nothing."""

SCRATCH = "scratch memory inside kernels"
WORKSPACES = "workspaces of cuDNN"
RESERVES = "cuDNN's reserves for recurrent layers and batch norm"
BLAS = "workspaces of cuBLAS"
ATTENTION = "scratch memory of fused attention"
GRAPHS = "CUDA graphs"
COMPILED = "compiled code"
NCCL = "NCCL"

_OPERATIONS = {
    WORKSPACES: "convolution convolution_backward",
    RESERVES: (
        "native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_functional "
        "native_batch_norm_backward lstm gru rnn_tanh rnn_relu mkldnn_rnn_layer _thnn_fused_lstm_cell"
    ),
    SCRATCH: (
        "sort topk cumsum cumprod nonzero _unique2 index_put index_put_ _index_put_impl_ "
        "embedding_dense_backward sum mean max min argmax argmin logsumexp norm linalg_vector_norm"
    ),
    BLAS: "mm addmm bmm baddbmm addmv mv dot _grouped_mm",
    ATTENTION: (
        "_scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_backward "
        "_scaled_dot_product_efficient_attention _scaled_dot_product_efficient_attention_backward"
    ),
}
# By torch's operation: what its kernels or libraries take for themselves on a GPU.
OF_OPERATION = {name: what for what, names in _OPERATIONS.items() for name in names.split()}
