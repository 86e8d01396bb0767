# The one thing that C++ cannot say for itself: a __shared__ variable belongs to the block, not to the thread. Line numbers stay.
#   extern __shared__ [attributes] T name[];     ->  memory of the launch
#   __shared__ [alignment] T name[a][b]...;      ->  memory that the first thread of the block to come here makes
s/extern __shared__ (__align__\([0-9]+\) )?([A-Za-z_][A-Za-z0-9_]*) ([a-z_]+)\[\];/\2* \3 = (\2*)cusim::dynamic_shared_memory();/
s/__shared__ (__align__\([0-9]+\) )?([A-Za-z_][A-Za-z0-9_:<>]*) ([A-Za-z_][A-Za-z0-9_]*)((\[[^]]*\])*);/auto\& \3 = cusim::shared_variable<\2\4, __COUNTER__>("\3");/
