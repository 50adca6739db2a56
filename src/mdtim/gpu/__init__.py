"""What runs faster on a GPU: kernels in Triton and CUDA C++, and the operators made of them."""
